package grpcapi

import (
	"context"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// trail writes what calls did and read into the audit log.
type trail struct {
	senders *senders
	log     *audit.Log
}

// record writes what a call did to the fleet, or what it read, into the audit log.
func (t trail) record(ctx context.Context, kind audit.Kind, method, target string, err error) {
	t.recordWith(ctx, audit.Event{Kind: kind, Method: method, Target: target}, err)
}

// recordWith completes an event with the caller and the outcome, and writes it.
func (t trail) recordWith(ctx context.Context, e audit.Event, err error) {
	from := originOf(ctx)
	e.Outcome, e.Address, e.RequestID = audit.OK, from.address, from.requestID
	if err != nil {
		e.Outcome = apierror.Name(apierror.From(err).Reason)
	}
	t.log.Write(e.From(t.senders.of(ctx)))
}

// recordRead writes that a call reads what belongs to other tenants. Without credentials there are none. A call that another router
// has passed on is written there.
func (t trail) recordRead(ctx context.Context, method, target string) {
	if who := t.senders.of(ctx); who.By != caller.Open && who.May(caller.Observe) && passedOn(ctx) == nil {
		t.record(ctx, audit.Read, method, target, nil)
	}
}
