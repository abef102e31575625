package router

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
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
		return &failure{outcome: upstream.OutcomeUnavailable, public: errOnTrial()}
	}

	out := &upstream.Request{
		Method: j.method(), Path: j.path(), Query: j.call.RawQuery,
		Header: j.call.Header, RequestID: j.call.RequestID, ContentType: j.call.ContentType, Body: r.outgoing(ctx, j),
	}
	if j.upload != nil {
		j.upload.into(out)
	}
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
		return f
	}
	defer resp.Close()
	err = r.stream(ctx, j, s, resp, to)
	r.usage(ctx, j, &result)
	if err == nil {
		result.End = decision.EndCompleted
		r.settle(choice.Replica.ID, pass, upstream.OutcomeOK)
		return nil
	}
	f := r.broken(ctx, j, err)
	r.settle(choice.Replica.ID, pass, f.outcome)
	result.End = endOf(ctx, f.outcome)
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

// progressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const progressStep = 8

// relay passes the answer on, piece by piece as it comes. The Sink is begun with the first
// piece, not with the head, so that a replica that dies between the two costs nothing.
func (r *Router) relay(ctx context.Context, j *job, s trace.Span, resp *upstream.Response, to Sink) error {
	streamed := isEventStream(resp.Header)
	j.scan.Reset(j.req.Prompt.API, streamed)
	reported := 0
	for {
		piece, err := resp.Next()
		if err == io.EOF { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is an answer that was cut off
			break
		}
		if err != nil {
			return err
		}
		if !j.begun && !j.choice.Begin() {
			return yielded(ctx) // what comes too late is not for the client
		}
		content := j.scan.ContentEvents()
		if content == 0 && j.scan.Feed(piece) && streamed { // a client that takes nothing must not make the prefill look longer
			r.sawFirstToken(j, s)
		}
		if !j.begun {
			if err := r.begin(j, resp, to); err != nil {
				return gone(err)
			}
		}
		if err := to.Write(piece); err != nil {
			return gone(err)
		}
		if content > 0 {
			j.scan.Feed(piece) // nobody waits for what it finds
		}
		if n := j.scan.ContentEvents(); streamed && n >= reported+progressStep {
			j.choice.Progress(n)
			reported = n
		}
	}
	if streamed && j.scan.Events() > 0 && !j.scan.Done() {
		return io.ErrUnexpectedEOF // every engine says when its stream is complete
	}
	if !j.begun {
		if !j.choice.Begin() {
			return yielded(ctx)
		}
		if err := r.begin(j, resp, to); err != nil {
			return gone(err)
		}
	}
	return nil
}

// begin hands the head of the answer to the client's surface.
func (r *Router) begin(j *job, resp *upstream.Response, to Sink) error {
	j.begun, j.status = true, resp.Status
	h := resp.Header
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	r.explain(j, h)
	return to.Begin(resp.Status, h)
}

// sawFirstToken marks the end of the prompt's prefill.
func (r *Router) sawFirstToken(j *job, s trace.Span) {
	j.firstToken = time.Now()
	j.choice.FirstToken()
	if s.IsRecording() {
		s.AddEvent(span.EventFirstToken)
		span.Set(s, span.FirstChunk.Float64(j.firstToken.Sub(j.chosen).Seconds()))
	}
}

// usage takes over what the engine said that the request has cost.
func (r *Router) usage(ctx context.Context, j *job, to *chooser.Result) {
	if u, ok := j.scan.Usage(); ok {
		to.PromptTokens, to.OutputTokens, to.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
	} else if n := j.scan.ContentEvents(); n > 0 && !j.firstToken.IsZero() {
		to.OutputTokens = n
	}
	r.observe(ctx, j, to)
	if j.call.Route == openai.RouteResponses {
		r.Pins.Put(j.scan.ResponseID(), j.choice.Replica.ID)
	}
}

func isEventStream(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}
