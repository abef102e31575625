package remote

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ClientFault is a tokenizer route's refusal of a request that seems wrong in itself.
type ClientFault struct {
	Status      int
	ContentType string
	Body        []byte
	// Rendered is set when a render route refused: it reads a body as the route that generates does, in the
	// same words. The other tokenizer routes read a question that was made of the body.
	Rendered bool
	// Firm is set when the route that generates can be expected to refuse the body too; package tokenizer
	// sets it.
	Firm bool
}

// Error names the status only: the body is the client's business.
func (f *ClientFault) Error() string {
	return fmt.Sprintf("the tokenizer refused the request with status %d", f.Status)
}

// Kind says why there are no ids. Values are few: they are a metric's label.
type Kind string

// The kinds of fault.
const (
	KindNoEndpoint  Kind = "no_endpoint"  // no replica may be asked
	KindOpen        Kind = "breaker_open" // all endpoints failed lately
	KindBusy        Kind = "busy"         // too many questions wait
	KindTimeout     Kind = "timeout"
	KindCancelled   Kind = "cancelled"
	KindConnect     Kind = "connect"
	KindOwn         Kind = "own_fault"   // this machine has no file descriptor, port or memory left
	KindStatus      Kind = "status"      // 5xx, 429, 408
	KindMalformed   Kind = "malformed"   // 200 with something else than was asked for
	KindAuth        Kind = "auth"        // 401 or 403: the router's key is wrong, not the client's
	KindUnsupported Kind = "unsupported" // the replica has no such route
	KindRefused     Kind = "refused"     // a 400, 404 or 422 to a question that another replica answers
	KindTooLarge    Kind = "too_large"   // the answer passes its bound
	KindUnmappable  Kind = "unmappable"  // the request has no exact form for this replica
)

// Fault is a tokenizer's failure, never the client's.
type Fault struct {
	Kind   Kind
	Status int
	// RetryAfter is how long the endpoint asked to be left alone; zero when it did not.
	RetryAfter time.Duration
	Cause      error
}

// Error gives kind, status and cause.
func (f *Fault) Error() string {
	switch {
	case f.Cause != nil:
		return fmt.Sprintf("tokenize: %s: %v", f.Kind, f.Cause)
	case f.Status != 0:
		return fmt.Sprintf("tokenize: %s: %d %s", f.Kind, f.Status, http.StatusText(f.Status))
	}
	return "tokenize: " + string(f.Kind)
}

// Unwrap gives the cause.
func (f *Fault) Unwrap() error { return f.Cause }

// KindOf names the fault in err, or "other".
func KindOf(err error) Kind {
	var f *Fault
	if errors.As(err, &f) {
		return f.Kind
	}
	return "other"
}

// isRetryable reports whether another endpoint may do better.
func (f *Fault) isRetryable() bool {
	switch f.Kind {
	case KindConnect, KindStatus, KindMalformed, KindAuth, KindUnsupported, KindTimeout, KindTooLarge, KindUnmappable:
		return true
	case KindNoEndpoint, KindOpen, KindBusy, KindCancelled, KindOwn, KindRefused:
	}
	return false
}
