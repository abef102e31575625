package router

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/openai"
	"github.com/kvpilot/kvpilot/server/replica"
	"github.com/kvpilot/kvpilot/server/span"
	"github.com/kvpilot/kvpilot/server/upstream"
)

// maxErrorBody bounds an engine's refusal that is read to be passed on.
const maxErrorBody = 1 << 20

// attempt sends the request to the chosen replica and passes the answer on. Every way out ends
// the reservation. It returns nil when the client has the whole answer.
func (r *Router) attempt(ctx context.Context, j *job, to Sink) *failure {
	result := chooser.Result{End: decision.EndFailed, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
	choice := j.choice
	outer := ctx
	defer func() { r.release(outer, choice, result) }()
	ctx, s := span.Start(ctx, r.tracer, span.Proxy, trace.SpanKindClient)
	defer s.End()
	describeAttempt(s, j)
	pass, ok := r.Breaker.Allow(choice.Replica.ID)
	if !ok && hasOther(choice.Decision) {
		result.End = decision.EndMoved
		f := &failure{outcome: upstream.OutcomeUnavailable, public: errOnTrial()}
		f.resumed = r.asksAgain(outer, j, f)
		return f
	}

	out := r.toEngine(ctx, j)
	if s.IsRecording() {
		out.Times = &upstream.Times{}
	}
	resp, err := r.Upstream.Do(ctx, upstream.Target{Replica: choice.Replica, Rank: choice.Rank}, out)
	outcome := upstream.Classify(resp, err)
	if out.Times != nil {
		describeExchange(s, out.Times, resp)
		r.drawExchange(s, out.Times, outcome)
	}
	if err != nil || outcome != upstream.OutcomeOK {
		f := r.refusal(ctx, j, resp, err, outcome)
		r.settle(choice.Replica.ID, pass, outcome)
		result.End = endOf(ctx, outcome)
		failed(ctx, s, f)
		f.resumed = r.asksAgain(outer, j, f)
		return f
	}
	defer resp.Close()
	earlier := j.earlier()
	choice.Arrived()
	err = r.stream(ctx, j, s, resp, to)
	r.usage(ctx, j, earlier, &result)
	if err == nil {
		result.End = decision.EndCompleted
		r.settle(choice.Replica.ID, pass, upstream.OutcomeOK)
		return nil
	}
	f := r.broken(ctx, j, err)
	r.settle(choice.Replica.ID, pass, f.outcome)
	result.End = endOf(ctx, f.outcome)
	switch {
	case r.conclude(ctx, j, err, to):
		result.End = decision.EndCompleted
		return nil
	case r.goesOn(outer, j, f):
		result.End, f.resumed = decision.EndResumed, true
	case j.begun && f.outcome == upstream.OutcomeBroken:
		result.End = decision.EndFailed
	}
	failed(ctx, s, f)
	return f
}

// failed marks the attempt's span; to give way is no failure.
func failed(ctx context.Context, s trace.Span, f *failure) {
	if gaveWay(ctx, f.outcome) {
		s.AddEvent(span.EventYield)
		return
	}
	span.Fail(s, f.outcome.String(), f.public.OwnWords())
}

// stream is relay, drawn as a span.
func (r *Router) stream(ctx context.Context, j *job, attempt trace.Span, resp *upstream.Response, to Sink) error {
	if !attempt.IsRecording() {
		return r.relay(ctx, j, attempt, resp, to)
	}
	began := time.Now()
	err := r.relay(ctx, j, attempt, resp, to)
	p := span.Part{Name: span.Stream, From: began, To: time.Now()}
	if err != nil {
		p.Failed = "the answer did not come to its end"
		span.Draw(attempt, r.tracer, p, span.Chunks.Int(j.scan.Events()), span.ErrorType.String("broken"))
		return err
	}
	span.Draw(attempt, r.tracer, p, span.Chunks.Int(j.scan.Events()))
	return nil
}

// release ends the reservation.
func (r *Router) release(ctx context.Context, choice *chooser.Choice, result chooser.Result) {
	began := time.Now()
	choice.Release(result)
	span.Draw(trace.SpanFromContext(ctx), r.tracer, span.Part{Name: span.Release, From: began, To: time.Now()}, span.FinishedBy.String(result.End.String()))
}

// settle tells those who judge replicas how an attempt went.
func (r *Router) settle(id replica.ID, pass upstream.Pass, outcome upstream.Outcome) {
	r.Breaker.Report(id, pass, outcome)
	switch outcome {
	case upstream.OutcomeUnreachable, upstream.OutcomeBroken, upstream.OutcomeMalformed:
		r.Registry.ReportFailure(id, errAnswer)
	case upstream.OutcomeOK:
		r.Registry.ReportSuccess(id)
	default: // says nothing about whether the replica is there
	}
}

// usage takes over what the engine said that the request has cost.
func (r *Router) usage(ctx context.Context, j *job, earlier int, to *chooser.Result) {
	if u, ok := j.scan.Usage(); ok {
		to.PromptTokens, to.OutputTokens, to.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		if j.seam != nil { // the client's counts are those of the whole request
			to.PromptTokens, to.OutputTokens = u.PromptTokens+j.seam.Answer, u.CompletionTokens-j.seam.Answer
		}
	} else if n := j.scan.ContentEvents() - earlier; n > 0 && !j.firstToken.IsZero() {
		to.OutputTokens = n
	}
	if j.seam != nil {
		return // nothing to learn of prompts: this one is no client's
	}
	r.observe(ctx, j, to)
	if j.call.Route == openai.RouteResponses {
		r.Pins.Put(j.scan.ResponseID(), j.choice.Replica.ID)
	}
}
