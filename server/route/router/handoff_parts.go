package router

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

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
