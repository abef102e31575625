package router

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
)

// storedCalls answers calls about stored responses.
type storedCalls struct {
	registry  *registry.Registry
	breaker   *breaker.Breaker
	responses *intake.Responses
	attempts  *dispatcher
	answers   *answers
}

func (st *storedCalls) serve(ctx context.Context, rq *intake.Request, id string, d *delivery) error {
	rq.Pool = &registry.Pool{}
	rq.Parsed, rq.Body = &openai.Request{Route: openai.RouteResponses, Stream: strings.Contains(rq.Call.RawQuery, "stream=true")}, rq.Call.Body
	snapshot := st.registry.Snapshot()
	candidates := snapshot.Replicas
	if !st.responses.MayRead(ctx, rq, id) {
		return intake.UnknownResponse(id)
	}
	if at, owner := st.responses.Pinned(ctx, rq.Call.Tenant, id); owner == pins.OwnerSelf {
		if rep, ok := snapshot.Replica(at); ok {
			candidates = []*replica.Replica{rep}
		}
	}
	var last *failure
	for _, rep := range candidates {
		if rep.State != replica.StateReady && rep.State != replica.StateDraining || len(rep.Models) == 0 {
			continue
		}
		last = st.direct(ctx, rq, rep, d)
		if last == nil {
			if rq.Call.Tenant == "" {
				st.responses.KeepPin("", id, rep.ID)
			}
			return nil
		}
		if d.begun || ctx.Err() != nil || last.public.HTTPStatus() != http.StatusNotFound && !last.outcome.Retryable() {
			break
		}
	}
	if last != nil {
		return last.public
	}
	return apierror.New(apierror.NoReplica, "no replica can take a request now", nil)
}

// direct sends the call to one replica without a choice or a reservation.
func (st *storedCalls) direct(ctx context.Context, rq *intake.Request, rep *replica.Replica, d *delivery) *failure {
	actx, cancel := context.WithCancel(ctx)
	rq.Story.Direct()
	a := newAttempt(cancel)
	a.choice = &chooser.Choice{Decision: &decision.Decision{Request: decision.Request{ID: rq.ID}, Ranks: decision.Ranks{Chosen: -1}}, Replica: rep}
	a.chosen = time.Now()
	a.pass, _ = st.breaker.Allow(rep.ID)
	d.attempt, d.chosen = a, true
	if f := st.attempts.send(ctx, actx, rq, d); f != nil {
		st.attempts.end(ctx, rq, d, f, endOf(f.outcome))
		return f
	}
	return st.answers.deliver(ctx, rq, &tries{}, d)
}
