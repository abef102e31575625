package router

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// anyPool is the pool of a request without a body: the gateway's model, the only one there is, or, where nothing is computed, any with
// a replica that takes requests.
func anyPool(s *registry.Snapshot, rq *request) (*registry.Pool, error) {
	if name := rq.call.Model; name != "" {
		if pool, ok := s.Pool(name); ok {
			return pool, nil
		}
		return nil, unknownModel(name, s)
	}
	if rq.call.Route.Generates() && len(s.Models()) > 0 {
		if pool, ok := s.Unnamed(); ok {
			return pool, nil
		}
		return nil, apierror.New(apierror.InvalidBody, "the gateway sends no body, and the router does not serve exactly one model: have it send bodies (request_body_mode)."+s.KnownModels(), nil, apierror.WithParam("model"))
	}
	if pool, ok := firstReady(s); ok {
		return pool, nil
	}
	return nil, apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(time.Second))
}

// runnersUp are the replicas that a decision could have taken in place of the chosen one, the cheapest first, each once.
func runnersUp(list []decision.Candidate, chosen replica.ID) []replica.ID {
	could := slices.DeleteFunc(slices.Clone(list), func(c decision.Candidate) bool {
		return c.Veto != decision.VetoNone || c.Replica == chosen
	})
	slices.SortStableFunc(could, func(a, b decision.Candidate) int { return cmp.Compare(a.Cost, b.Cost) })
	var ids []replica.ID
	for i := range could {
		if !slices.Contains(ids, could[i].Replica) {
			ids = append(ids, could[i].Replica)
		}
	}
	return ids
}

// traceHeader makes the span id, below that of ctx, the parent of the replica's spans.
func traceHeader(ctx context.Context, id trace.SpanID, to http.Header) {
	at := trace.SpanContextFromContext(ctx)
	if !at.IsValid() || !id.IsValid() {
		return
	}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(ctx, at.WithSpanID(id)), propagation.HeaderCarrier(to))
}
