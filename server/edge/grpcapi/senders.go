package grpcapi

import (
	"context"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

// senders names the senders of calls.
type senders struct {
	callers   *callers.Callers
	anonymous *caller.Caller
}

// of is the sender of a call. It has no role when credentials are needed and were not checked.
func (s *senders) of(ctx context.Context) *caller.Caller {
	var who *caller.Caller
	if e := httpcall.From(ctx); e != nil {
		who = e.Caller
	} else if c := guard.FromContext(ctx); c != nil {
		who = c.Caller
	} else if p := passedOn(ctx); p != nil {
		return p.caller
	}
	switch {
	case who != nil:
		return who
	case s.callers.Open():
		return s.anonymous
	}
	return &caller.Caller{}
}

// tenant owns the objects that a call makes; empty when no credentials are asked for.
func (s *senders) tenant(ctx context.Context) string { return s.of(ctx).Tenant }

// name is a caller's name in the history: the key's tenant, and the address.
func (s *senders) name(ctx context.Context) string {
	tenant, address := s.tenant(ctx), clientOf(ctx)
	if p := passedOn(ctx); p != nil && p.address != "" {
		address = p.address // at first the call came from there
	}
	switch {
	case tenant == "":
		return address
	case address == "":
		return tenant
	}
	return tenant + " (" + address + ")"
}

// trail writes the changes and reads of calls into the audit log.
type trail struct {
	senders *senders
	log     *audit.Log
}

// record writes a call's change of the fleet, or its read, into the audit log.
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

// recordRead writes that a call reads other tenants' data. Without credentials there are none. A call that another router
// has passed on is written there.
func (t trail) recordRead(ctx context.Context, method, target string) {
	if who := t.senders.of(ctx); who.By != caller.Open && who.May(caller.Observe) && passedOn(ctx) == nil {
		t.record(ctx, audit.Read, method, target, nil)
	}
}
