package grpcapi

import (
	"context"

	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

const (
	// listMemory is what the answer of a list takes while it is made, and answerMemory that of a smaller one.
	listMemory   = 3 * mostListBytes
	answerMemory = 1 << 20
)

// hold charges a call, before its answer is made, with the memory that this takes.
func hold(ctx context.Context, bytes int64) error {
	if e := httpcall.From(ctx); e != nil {
		return guard.Refused(e.Account.TakeSoon(ctx, ledger.Answer, bytes))
	}
	return guard.Reserve(ctx, bytes)
}
