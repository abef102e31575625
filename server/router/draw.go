package router

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/apierror"
	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/span"
	"github.com/kvpilot/kvpilot/server/upstream"
)

// drawAdmission draws what the surface did before the router was asked: letting the caller in and
// reading the body.
func (r *Router) drawAdmission(ctx context.Context, j *job) {
	if s := trace.SpanFromContext(ctx); s.IsRecording() && !j.call.Received.IsZero() {
		from := j.received
		if j.call.Traced.After(from) {
			from = j.call.Traced // what begins before its parent looks like a wrong clock
		}
		span.Draw(s, r.tracer, span.Part{Name: span.Admit, From: from, To: time.Now()})
	}
}

// drawRefusal draws a body that was read since began and is not taken.
func (r *Router) drawRefusal(above trace.Span, began time.Time, why *apierror.Error) {
	span.Draw(above, r.tracer, span.Part{Name: span.Read, From: began, To: time.Now(), Failed: why.Message}, span.ErrorType.String(apierror.Name(why.Reason)))
}

// drawChoice draws a choice that was begun at began and has just ended: the wait in the queue, the
// look at the index, the choice itself, whose span has the id that the decision names.
func (r *Router) drawChoice(above trace.Span, began time.Time, id trace.SpanID, choice *chooser.Choice, err error) {
	chosen := span.Part{Name: span.Choose, From: began, To: time.Now(), ID: id}
	d := decided(choice, err)
	if d == nil {
		chosen.Failed = "no decision"
		span.Draw(above, r.tracer, chosen, span.ErrorType.String("refused"))
		return
	}
	if d.Held > 0 {
		span.Draw(above, r.tracer, span.Part{Name: span.Hold, From: began, To: began.Add(d.Held)}, span.HeldFor.Float64(d.Held.Seconds()))
	}
	looked := chosen.To.Add(-d.Took)
	chosen.From = looked.Add(d.Scored)
	span.Draw(above, r.tracer, span.Part{Name: span.Score, From: looked, To: chosen.From},
		span.PromptTokens.Int(d.PromptTokens), span.BestOverlap.Int(bestOverlap(d)), span.Candidates.Int(len(d.Candidates)))

	var list [10]span.KeyValue
	attrs := append(list[:0], span.DecisionID.String(d.ID), span.Policy.String(string(d.Policy)), span.Reason.String(string(d.Reason)),
		span.Candidates.Int(len(d.Candidates)), span.Margin.Float64(d.Margin))
	if pick := d.Pick(); pick != nil {
		attrs = append(attrs, span.Replica.String(string(pick.Replica)), span.Rank.Int(int(pick.Rank)),
			span.OverlapTokens.Int(overlap(d)), span.PredictedTTFT.Float64(pick.TTFT))
	}
	if d.Reason == decision.ReasonNoKey {
		chosen.Event = span.EventFallback
		chosen.EventAttrs = []span.KeyValue{span.FallbackOf.String("choose"), span.Reason.String(string(d.Reason))}
	}
	if err != nil {
		chosen.Failed = "every candidate is vetoed"
		attrs = append(attrs, span.ErrorType.String(apierror.Name(apierror.NoReplica)))
	}
	span.Draw(above, r.tracer, chosen, attrs...)
}

// drawExchange draws how an attempt reached its replica: the new connection, when it took one, and
// the wait for the head of the answer.
func (r *Router) drawExchange(attempt trace.Span, t *upstream.Times, outcome upstream.Outcome) {
	if !t.DialBegan.IsZero() {
		r.drawPart(attempt, span.Dial, t.DialBegan, t.Dialed, outcome)
	}
	if !t.Began.IsZero() {
		r.drawPart(attempt, span.FirstByte, t.Began, t.Head, outcome)
	}
}

// drawPart draws a part of an attempt, which failed when it has no end.
func (r *Router) drawPart(attempt trace.Span, name string, from, to time.Time, outcome upstream.Outcome) {
	if to.IsZero() {
		span.Draw(attempt, r.tracer, span.Part{Name: name, From: from, To: time.Now(), Failed: "it did not come to that"}, span.ErrorType.String(outcome.String()))
		return
	}
	span.Draw(attempt, r.tracer, span.Part{Name: name, From: from, To: to})
}

// decided is the decision behind a choice, or behind its refusal; nil when none was made.
func decided(choice *chooser.Choice, err error) *decision.Decision {
	if choice != nil {
		return choice.Decision
	}
	if none, ok := errors.AsType[*chooser.NoReplica](err); ok {
		return none.Decision
	}
	return nil
}
