package intake

import (
	"context"
	"net/url"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
)

// places finds the replicas that can serve a request.
type places struct {
	registry  *registry.Registry
	standby   Standbys
	responses *Responses
}

// place finds out whether one replica alone can serve: the one that the caller names, or the one that
// stores the response which the request continues.
func (pl *places) place(ctx context.Context, rq *Request) error {
	if err := pl.responses.check(ctx, rq); err != nil {
		return err
	}
	if rq.Call.Options.Pinned != "" {
		return pl.checkPin(rq)
	}
	pl.responses.findHolder(ctx, rq)
	return nil
}

// checkPin refuses a pin that no retry will make true.
func (pl *places) checkPin(rq *Request) error {
	o := &rq.Call.Options
	name := "`" + Clip(string(o.Pinned), 128) + "`"
	missing := func(message string) error {
		return apierror.New(apierror.ReplicaNotFound, message, nil, apierror.WithParam("pin"))
	}
	at, known := pl.registry.Snapshot().Replica(o.Pinned)
	switch {
	case !known:
		return missing("There is no replica " + name + "; ReplicaService.List, GET /kvpilot/v1/replicas, lists the ids.")
	case len(at.Models) == 0:
		return nil // it has not reported yet what it serves
	case !pools.Serves(rq.Pool, at.ID):
		return missing("The replica " + name + " does not serve the model `" + Clip(rq.Pool.Model, 128) + "`.")
	case o.PinnedRank >= len(at.Slots):
		return missing("The replica " + name + " has no such rank.")
	}
	return nil
}

// findPool finds the replicas that serve the model. A body without a model means the one that each
// engine would take.
func (pl *places) findPool(ctx context.Context, rq *Request) error {
	name := rq.Parsed.Model
	if err := pl.standby.Wait(ctx, rq, name); err != nil {
		return err
	}
	snapshot := pl.registry.Snapshot()
	if name == "" {
		pool, ok := snapshot.Unnamed()
		if !ok {
			return apierror.New(apierror.InvalidBody, "the field \"model\" is missing, and the router does not serve exactly one model."+snapshot.KnownModels(), nil, apierror.WithParam("model"))
		}
		rq.usePool(pool)
		return nil
	}
	pool, ok := snapshot.Pool(name)
	if !ok {
		return pools.Unknown(name, snapshot)
	}
	rq.usePool(pool)
	return nil
}

// findAdapter finds the pool of a question: the adapter's where one is named, which must be one of the
// model's, if that is named too.
func (pl *places) findAdapter(ctx context.Context, rq *Request, adapter string) error {
	if adapter == "" {
		return pl.findPool(ctx, rq)
	}
	snapshot := pl.registry.Snapshot()
	pool, ok := snapshot.Pool(adapter)
	if ok && rq.Parsed.Model != "" && rq.Parsed.Model != adapter {
		if err := pl.findPool(ctx, rq); err != nil {
			return err
		}
		ok = pool == rq.Pool || pool.AdapterOf(rq.Pool)
	}
	if !ok || pool.Adapter == "" {
		return apierror.New(apierror.ModelNotFound, "The model has no adapter `"+Clip(adapter, 128)+"`.", nil, apierror.WithParam("adapter"))
	}
	rq.usePool(pool)
	return nil
}

// findSocketPool finds the replicas of a WebSocket. The model of a session is named inside the WebSocket, so a handshake without one goes to
// the first pool that can serve.
func (pl *places) findSocketPool(rq *Request) error {
	snapshot := pl.registry.Snapshot()
	pool, ok := snapshot.Pool(rq.Parsed.Model)
	switch {
	case rq.Parsed.Model == "":
		if pool, ok = pools.FirstReady(snapshot); !ok {
			return apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(time.Second))
		}
	case !ok:
		return pools.Unknown(rq.Parsed.Model, snapshot)
	case pool.Served != rq.Parsed.Model:
		query, err := url.ParseQuery(rq.Call.RawQuery)
		if err != nil {
			return apierror.New(apierror.InvalidBody, "the query cannot be read", err)
		}
		query.Set("model", pool.Served)
		rq.Call.RawQuery = query.Encode()
	}
	rq.Pool, rq.Adapter = pool, pool.Adapter
	return nil
}
