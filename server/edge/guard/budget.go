package guard

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// Refused is the public error of a charge that the ledger has refused; nil stays nil.
func Refused(err error) error {
	if full := (*ledger.Full)(nil); errors.As(err, &full) {
		return refusal(full)
	}
	return err
}

func refusal(full *ledger.Full) *apierror.Error {
	message := "the memory for request bodies and answers is used up (gateway.max_bodies_bytes)"
	if full.Kind == ledger.Stream || full.Kind == ledger.Connection {
		message = "the memory for requests and connections is used up (memory.max_bytes)"
	}
	switch full.By {
	case "tenant":
		message += ": the tenant holds its share"
	case "address", "nameless":
		message += ": the client's address holds its share"
	}
	return apierror.New(apierror.Overloaded, message, full, apierror.WithRetryAfter(time.Second))
}

func errFull() *apierror.Error { return refusal(&ledger.Full{Kind: ledger.Body, By: "process"}) }

// Sender is who an account of a caller is for. A nil caller has shown no credentials.
func Sender(who *caller.Caller, conn *ledger.Conn, address string) ledger.Sender {
	s := ledger.Sender{Conn: conn, Address: address}
	switch {
	case who == nil:
		s.Nameless = true
	case who.By == caller.Open:
		s.Open = true
	default:
		s.Tenant = who.Tenant
	}
	return s
}

// Reserve charges a call, before its answer is made, with the memory that this will take. The charge ends with the call; a handler without a
// call is charged nothing.
func Reserve(ctx context.Context, bytes int64) error {
	c := FromContext(ctx)
	if c == nil {
		return nil
	}
	return Refused(c.account.TakeSoon(ctx, ledger.Answer, bytes))
}
