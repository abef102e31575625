package router

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// place finds out whether one replica alone can serve: the one that the caller names, or the one that
// stores the response which the request continues.
func (in *intake) place(ctx context.Context, rq *request) error {
	if err := in.responses.check(ctx, rq); err != nil {
		return err
	}
	if rq.call.Options.Pinned != "" {
		return in.checkPin(rq)
	}
	in.responses.findHolder(ctx, rq)
	return nil
}

// checkPin refuses a pin that no retry will make true.
func (in *intake) checkPin(rq *request) error {
	o := &rq.call.Options
	name := "`" + clip(string(o.Pinned), 128) + "`"
	missing := func(message string) error {
		return apierror.New(apierror.ReplicaNotFound, message, nil, apierror.WithParam("pin"))
	}
	at, known := in.registry.Snapshot().Replica(o.Pinned)
	switch {
	case !known:
		return missing("There is no replica " + name + "; ReplicaService.List, GET /kvpilot/v1/replicas, lists the ids.")
	case len(at.Models) == 0:
		return nil // it has not reported yet what it serves
	case !serves(rq.pool, at.ID):
		return missing("The replica " + name + " does not serve the model `" + clip(rq.pool.Model, 128) + "`.")
	case o.PinnedRank >= len(at.Slots):
		return missing("The replica " + name + " has no such rank.")
	}
	return nil
}

func serves(p *registry.Pool, id replica.ID) bool {
	return slices.ContainsFunc(p.Replicas, func(r *replica.Replica) bool { return r.ID == id })
}

// pin remembers where a response is stored.
func (s *responses) pin(rq *request, d *delivery) {
	if rq.call.Route == openai.RouteResponses {
		s.keepPin(rq.call.Tenant, d.scan.ResponseID(), d.attempt.choice.Replica.ID)
	}
}

// FleetPins are the pins that the other routers of the fleet have made or keep.
type FleetPins interface {
	// PinMade has a new pin kept where each router finds it.
	PinMade(tenant, response string, id replica.ID)
	// FindPin enters another router's pin of a response in Pins, and reports whether there is one.
	FindPin(ctx context.Context, response string) bool
}

// keepPin remembers where a response is stored, here and in the fleet.
func (s *responses) keepPin(tenant, response string, id replica.ID) {
	s.pins.Put(tenant, response, id)
	if s.fleet != nil && response != "" {
		s.fleet.PinMade(tenant, response, id)
	}
}

// pinned returns where a response is stored and which tenant owns it, as Pins.Get does, from another router of the fleet when this
// one has not seen the response made.
func (s *responses) pinned(ctx context.Context, tenant, id string) (replica.ID, pins.Owner) {
	at, owner := s.pins.Get(tenant, id)
	if owner != pins.OwnerUnknown || s.fleet == nil || !s.fleet.FindPin(ctx, id) {
		return at, owner
	}
	return s.pins.Get(tenant, id)
}

// findHolder finds the replica that stores the response which the request continues: any other one
// would answer that there is none. Where no replica has it, any of them answers so.
func (s *responses) findHolder(ctx context.Context, rq *request) {
	id := rq.parsed.PreviousResponse
	if id == "" || rq.call.Route != openai.RouteResponses || len(rq.pool.Replicas) < 2 {
		return
	}
	at, owner := s.pinned(ctx, rq.call.Tenant, id)
	known := owner == pins.OwnerSelf
	if !known {
		if at, known = s.locate(ctx, rq, id); known && rq.call.Tenant == "" {
			s.keepPin("", id, at)
		}
	}
	o := &rq.call.Options
	if !known || !serves(rq.pool, at) || slices.Contains(o.Denied, at) || len(o.Allowed) > 0 && !slices.Contains(o.Allowed, at) {
		return
	}
	rq.holder = at
}

const (
	// locateTimeout bounds the search for a response that this router did not see made, locateAtOnce
	// the replicas that are asked in parallel.
	locateTimeout = time.Second
	locateAtOnce  = 16
)

// locate asks the pool's replicas which of them stores a response: another router saw it made, or this
// one before it was restarted.
func (s *responses) locate(ctx context.Context, rq *request, id string) (replica.ID, bool) {
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	found := make(chan replica.ID, len(rq.pool.Replicas))
	var all errgroup.Group
	all.SetLimit(locateAtOnce)
	for _, rep := range rq.pool.Replicas {
		if rep.State != replica.StateReady && rep.State != replica.StateDraining {
			continue
		}
		all.Go(func() error {
			if s.stores(ctx, rep, id) {
				found <- rep.ID
				cancel() // no other replica has it
			}
			return nil
		})
	}
	_ = all.Wait() // no function fails
	select {
	case at := <-found:
		return at, true
	default:
		return "", false
	}
}

// stores asks one replica for a response.
func (s *responses) stores(ctx context.Context, rep *replica.Replica, id string) bool {
	if ctx.Err() != nil {
		return false
	}
	resp, err := s.upstream.Do(ctx, upstream.Target{Replica: rep}, &upstream.Request{Method: http.MethodGet, Path: "/v1/responses/" + url.PathEscape(id), Header: http.Header{}})
	if err != nil {
		return false
	}
	defer resp.Close()
	return resp.Status == http.StatusOK
}

// full reports whether a limit of requests is what keeps the request from being served.
func full(d *decision.Decision) bool {
	return slices.ContainsFunc(d.List(), func(c decision.Candidate) bool { return c.Veto == decision.VetoCap })
}
