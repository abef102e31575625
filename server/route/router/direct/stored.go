package direct

import (
	"context"
	"net/http"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/answer"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
)

// Stored answers calls about stored responses.
type Stored struct {
	registry  *registry.Registry
	breaker   *breaker.Breaker
	responses *intake.Responses
	attempts  *attempt.Dispatcher
	answers   *answer.Answers
}

// NewStored makes a Stored.
func NewStored(r *registry.Registry, b *breaker.Breaker, in *intake.Intake, attempts *attempt.Dispatcher, answers *answer.Answers) *Stored {
	return &Stored{registry: r, breaker: b, responses: in.Responses, attempts: attempts, answers: answers}
}

// Serve answers a call about the response of an id.
func (st *Stored) Serve(ctx context.Context, rq *intake.Request, id string, d *attempt.Delivery) error {
	rq.Pool = &registry.Pool{}
	rq.Parsed, rq.Body = &openai.Request{Route: openai.RouteResponses, Wanted: openai.Wanted{Stream: strings.Contains(rq.Call.RawQuery, "stream=true")}}, rq.Call.Body
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
	var last *attempt.Failure
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
		if d.HasBegun() || ctx.Err() != nil || last.Public.HTTPStatus() != http.StatusNotFound && !last.Outcome.Retryable() {
			break
		}
	}
	if last != nil {
		return last.Public
	}
	return apierror.New(apierror.NoReplica, "no replica can take a request now", nil)
}

// direct sends the call to one replica without a choice or a reservation.
func (st *Stored) direct(ctx context.Context, rq *intake.Request, rep *replica.Replica, d *attempt.Delivery) *attempt.Failure {
	actx, cancel := context.WithCancel(ctx)
	rq.Story.Direct()
	pass, _ := st.breaker.Allow(rep.ID)
	d.Take(attempt.NewDirect(cancel, rq.ID, rep, pass))
	if f := st.attempts.Send(ctx, actx, rq, d); f != nil {
		st.attempts.End(ctx, rq, d, f, attempt.EndOf(f.Outcome))
		return f
	}
	return st.answers.Deliver(ctx, rq, &attempt.Tries{}, d)
}
