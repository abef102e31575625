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
func (r *Router) place(ctx context.Context, j *job) error {
	if err := r.checkResponse(j); err != nil {
		return err
	}
	if j.call.Options.Pinned != "" {
		return r.checkPin(j)
	}
	r.findHolder(ctx, j)
	return nil
}

// checkPin refuses a pin that no retry will make true.
func (r *Router) checkPin(j *job) error {
	o := &j.call.Options
	name := "`" + clip(string(o.Pinned), 128) + "`"
	missing := func(message string) error {
		return apierror.New(apierror.ReplicaNotFound, message, nil, apierror.WithParam("pin"))
	}
	at, known := r.Registry.Snapshot().Replica(o.Pinned)
	switch {
	case !known:
		return missing("There is no replica " + name + ".")
	case len(at.Models) == 0:
		return nil // it has not said yet what it serves
	case !serves(j.pool, at.ID):
		return missing("The replica " + name + " does not serve the model `" + clip(j.pool.Model, 128) + "`.")
	case o.PinnedRank >= len(at.Slots):
		return missing("The replica " + name + " has no such rank.")
	}
	return nil
}

func serves(p *registry.Pool, id replica.ID) bool {
	return slices.ContainsFunc(p.Replicas, func(r *replica.Replica) bool { return r.ID == id })
}

// pin remembers where a response is stored.
func (r *Router) pin(j *job) {
	if j.call.Route == openai.RouteResponses {
		r.Pins.Put(j.call.Tenant, j.scan.ResponseID(), j.choice.Replica.ID)
	}
}

// findHolder finds the replica that stores the response which the request continues: any other one
// would answer that there is none. Where nobody has it, any replica says so in its own words.
func (r *Router) findHolder(ctx context.Context, j *job) {
	id := j.req.PreviousResponse
	if id == "" || j.call.Route != openai.RouteResponses || len(j.pool.Replicas) < 2 {
		return
	}
	at, owner := r.Pins.Get(j.call.Tenant, id)
	known := owner == pins.OwnerSelf
	if !known {
		if at, known = r.locate(ctx, j, id); known && j.call.Tenant == "" {
			r.Pins.Put("", id, at)
		}
	}
	o := &j.call.Options
	if !known || !serves(j.pool, at) || slices.Contains(o.Denied, at) || len(o.Allowed) > 0 && !slices.Contains(o.Allowed, at) {
		return
	}
	j.holder = at
}

const (
	// locateTimeout bounds the search for a response that this router did not see made, locateAtOnce
	// the replicas that are asked side by side.
	locateTimeout = time.Second
	locateAtOnce  = 16
)

// locate asks the pool's replicas which of them stores a response: another router saw it made, or this
// one before it was restarted.
func (r *Router) locate(ctx context.Context, j *job, id string) (replica.ID, bool) {
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	found := make(chan replica.ID, len(j.pool.Replicas))
	var all errgroup.Group
	all.SetLimit(locateAtOnce)
	for _, rep := range j.pool.Replicas {
		if rep.State != replica.StateReady && rep.State != replica.StateDraining {
			continue
		}
		all.Go(func() error {
			if r.stores(ctx, rep, id) {
				found <- rep.ID
				cancel() // nobody else has it
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
func (r *Router) stores(ctx context.Context, rep *replica.Replica, id string) bool {
	if ctx.Err() != nil {
		return false
	}
	resp, err := r.Upstream.Do(ctx, upstream.Target{Replica: rep}, &upstream.Request{Method: http.MethodGet, Path: "/v1/responses/" + url.PathEscape(id), Header: http.Header{}})
	if err != nil {
		return false
	}
	defer resp.Close()
	return resp.Status == http.StatusOK
}

// full reports whether a limit of requests is what keeps the request from being served.
func full(d *decision.Decision) bool {
	return slices.ContainsFunc(d.Candidates, func(c decision.Candidate) bool { return c.Veto == decision.VetoCap })
}
