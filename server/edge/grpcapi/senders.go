package grpcapi

import (
	"context"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
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

// tenant owns what a call makes; empty when no credentials are asked for.
func (s *senders) tenant(ctx context.Context) string { return s.of(ctx).Tenant }

// name is that of a caller in the history: the key's tenant, and the address.
func (s *senders) name(ctx context.Context) string {
	tenant, address := s.tenant(ctx), clientOf(ctx)
	switch {
	case tenant == "":
		return address
	case address == "":
		return tenant
	}
	return tenant + " (" + address + ")"
}
