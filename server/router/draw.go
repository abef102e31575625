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
	if !trace.SpanFromContext(ctx).IsRecording() || j.call.Received.IsZero() {
		return
	}
	_, s := r.tracer.Start(ctx, span.Admit, trace.WithTimestamp(j.received))
	s.End()
}

// drawChoice draws a choice that was begun at began and has just ended: the wait in the queue, the
// look at the index, the choice itself.
func (r *Router) drawChoice(ctx context.Context, began time.Time, choice *chooser.Choice, err error) {
	ended := time.Now()
	d := decided(choice, err)
	if d == nil {
		_, s := r.tracer.Start(ctx, span.Choose, trace.WithTimestamp(began))
		span.Fail(s, "refused", "no decision")
		s.End(trace.WithTimestamp(ended))
		return
	}
	if d.Held > 0 {
		_, s := r.tracer.Start(ctx, span.Hold, trace.WithTimestamp(began))
		s.SetAttributes(span.HeldFor.Float64(d.Held.Seconds()))
		s.End(trace.WithTimestamp(began.Add(d.Held)))
	}
	looked := ended.Add(-d.Took)
	_, s := r.tracer.Start(ctx, span.Score, trace.WithTimestamp(looked))
	s.SetAttributes(span.PromptTokens.Int(d.PromptTokens), span.BestOverlap.Int(bestOverlap(d)), span.Candidates.Int(len(d.Candidates)))
	s.End(trace.WithTimestamp(looked.Add(d.Scored)))

	_, s = r.tracer.Start(ctx, span.Choose, trace.WithTimestamp(looked.Add(d.Scored)))
	s.SetAttributes(span.DecisionID.String(d.ID), span.Policy.String(string(d.Policy)), span.Reason.String(string(d.Reason)),
		span.Candidates.Int(len(d.Candidates)), span.Margin.Float64(d.Margin))
	if pick := d.Pick(); pick != nil {
		s.SetAttributes(span.Replica.String(string(pick.Replica)), span.Rank.Int(int(pick.Rank)),
			span.OverlapTokens.Int(overlap(d)), span.PredictedTTFT.Float64(pick.TTFT))
	}
	if d.Reason == decision.ReasonNoKey {
		span.Fallback(trace.ContextWithSpan(ctx, s), "choose", string(d.Reason))
	}
	if err != nil {
		span.Fail(s, apierror.Name(apierror.NoReplica), "every candidate is vetoed")
	}
	s.End(trace.WithTimestamp(ended))
}

// drawExchange draws how an attempt reached its replica: the new connection, when it took one, and
// the wait for the head of the answer. ctx holds the attempt's span.
func (r *Router) drawExchange(ctx context.Context, t *upstream.Times, outcome upstream.Outcome) {
	now := time.Now()
	part := func(name string, from, to time.Time) {
		_, s := r.tracer.Start(ctx, name, trace.WithTimestamp(from))
		if to.IsZero() {
			span.Fail(s, outcome.String(), "it did not come to that")
			to = now
		}
		s.End(trace.WithTimestamp(to))
	}
	trace.SpanFromContext(ctx).SetAttributes(span.Reused.Bool(t.DialBegan.IsZero() && !t.Began.IsZero()))
	if !t.DialBegan.IsZero() {
		part(span.Dial, t.DialBegan, t.Dialed)
	}
	if !t.Began.IsZero() {
		part(span.FirstByte, t.Began, t.Head)
	}
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
