package router

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/apierror"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/openai"
	"github.com/kvpilot/kvpilot/server/span"
	"github.com/kvpilot/kvpilot/server/upstream"
)

// The response headers that explain a choice.
const (
	HeaderRequestID = "X-Request-Id"
	HeaderReplica   = "X-Kvpilot-Replica"
	HeaderAddress   = "X-Kvpilot-Address"
	HeaderOverlap   = "X-Kvpilot-Overlap-Tokens"
	HeaderPolicy    = "X-Kvpilot-Policy"
	HeaderDecision  = "X-Kvpilot-Decision"
	HeaderOverhead  = "X-Kvpilot-Overhead-Us"
)

// explain puts into h what the operator lets clients know about the choice.
func (r *Router) explain(j *job, h http.Header) {
	if j.call.RequestID != "" {
		h[HeaderRequestID] = []string{j.call.RequestID}
	}
	show := r.config.Headers
	c := j.choice
	if show.Replica {
		h[HeaderReplica] = []string{string(c.Replica.ID)}
	}
	if show.Address {
		h[HeaderAddress] = []string{c.Replica.URL}
	}
	if show.Overlap {
		h[HeaderOverlap] = []string{strconv.Itoa(overlap(c.Decision))}
	}
	if show.Policy {
		h[HeaderPolicy] = []string{string(c.Decision.Policy)}
	}
	if show.Decision {
		h[HeaderDecision] = []string{j.id}
	}
	if show.Overhead {
		h[HeaderOverhead] = []string{strconv.FormatInt(j.overhead.Microseconds(), 10)}
	}
}

// overlap is how many of the prompt's tokens the chosen rank was believed to hold, in all tiers.
func overlap(d *decision.Decision) int {
	if pick := d.Pick(); pick != nil {
		return int(pick.GPU + pick.CPU + pick.Disk)
	}
	return 0
}

// bestOverlap is the longest overlap of any candidate.
func bestOverlap(d *decision.Decision) int {
	best := uint32(0)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		best = max(best, c.GPU+c.CPU+c.Disk)
	}
	return int(best)
}

// describeAttempt puts the decision on the span of its attempt.
func describeAttempt(s trace.Span, j *job) {
	if !s.IsRecording() {
		return
	}
	d := j.choice.Decision
	host, port := hostPort(j.choice.Replica.URL)
	span.Set(s,
		span.Operation.String(operation(j.call.Route)), span.Provider.String("vllm"), span.Model.String(clip(j.req.Model, 128)), span.HTTPMethod.String(j.method()),
		span.DecisionID.String(d.ID), span.Attempt.Int(d.Attempt),
		span.Replica.String(string(j.choice.Replica.ID)), span.Rank.Int(j.choice.Rank),
		span.OverlapTokens.Int(overlap(d)), span.Overhead.Float64(j.overhead.Seconds()),
		span.ServerAddress.String(host), span.ServerPort.Int(port))
}

// finish is the one place where a request's end is counted, logged and put on its span.
func (r *Router) finish(ctx context.Context, j *job, err error) {
	took := time.Since(j.received)
	public := apierror.From(err)
	r.metrics.end(ctx, j, public, took)
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		r.describeRequest(s, j, public)
	}
	level := slog.LevelInfo
	if public != nil {
		switch public.Fault() {
		case apierror.FaultGone:
			level = slog.LevelDebug
		case apierror.FaultOurs:
			level = slog.LevelError
		case apierror.FaultCaller:
		}
	}
	if !r.Log.Enabled(ctx, level) {
		return
	}
	r.Log.LogAttrs(ctx, level, "request", r.logLine(j, public, took)...)
}

func (r *Router) describeRequest(s trace.Span, j *job, public *apierror.Error) {
	var list [24]span.KeyValue
	attrs := append(list[:0], span.RequestID.String(j.call.RequestID), span.DecisionID.String(j.id))
	if j.req != nil {
		attrs = append(attrs, span.Model.String(clip(j.req.Model, 128)), span.Streamed.Bool(j.req.Stream), span.Operation.String(operation(j.call.Route)))
		if j.req.MaxTokens > 0 {
			attrs = append(attrs, span.MaxTokens.Int(j.req.MaxTokens))
		}
		if j.req.Session != "" {
			attrs = append(attrs, span.Conversation.String(clip(j.req.Session, 256)))
		}
	}
	if c := j.choice; c != nil {
		attrs = append(attrs, span.Replica.String(string(c.Replica.ID)), span.Policy.String(string(c.Decision.Policy)),
			span.OverlapTokens.Int(overlap(c.Decision)), span.BestOverlap.Int(bestOverlap(c.Decision)), span.Candidates.Int(len(c.Decision.Candidates)))
	}
	if !j.firstToken.IsZero() {
		attrs = append(attrs, span.FirstChunk.Float64(j.firstToken.Sub(j.received).Seconds()))
	}
	if id := j.scan.ResponseID(); id != "" {
		attrs = append(attrs, span.ResponseID.String(clip(id, 128)))
	}
	if why := j.scan.FinishReason(); why != "" {
		attrs = append(attrs, span.FinishReasons.StringSlice([]string{clip(why, 32)}))
	}
	if u, ok := j.scan.Usage(); ok {
		attrs = append(attrs, span.InputTokens.Int(u.PromptTokens), span.OutputTokens.Int(u.CompletionTokens))
		if u.CachedTokens >= 0 {
			attrs = append(attrs, span.CachedTokens.Int(u.CachedTokens))
		}
	}
	span.Set(s, attrs...)
	if public != nil && public.Fault() == apierror.FaultOurs {
		span.Fail(s, apierror.Name(public.Reason), public.OwnWords())
	}
}

// operation is the route in the words of OpenTelemetry's conventions, where they have one.
func operation(r openai.Route) string {
	switch r {
	case openai.RouteChat, openai.RouteResponses, openai.RouteMessages:
		return "chat"
	case openai.RouteCompletions:
		return "text_completion"
	default:
		return r.String()
	}
}

// describeExchange puts the connection and the head of the answer on the span of an attempt.
func describeExchange(s trace.Span, t *upstream.Times, resp *upstream.Response) {
	reused := span.Reused.Bool(t.DialBegan.IsZero() && !t.Began.IsZero())
	if resp == nil {
		span.Set(s, reused)
		return
	}
	span.Set(s, reused, span.HTTPStatus.Int(resp.Status))
}

// logLine is the one line that a request leaves; nothing of its prompt or answer is in it.
func (r *Router) logLine(j *job, public *apierror.Error, took time.Duration) []slog.Attr {
	line := append(make([]slog.Attr, 0, 16),
		slog.String("id", j.call.RequestID), slog.String("decision", j.id), slog.String("route", j.call.Route.String()))
	if j.req != nil {
		line = append(line, slog.String("model", clip(j.req.Model, 128)), slog.Bool("stream", j.req.Stream))
	}
	if c := j.choice; c != nil {
		line = append(line, slog.String("replica", string(c.Replica.ID)), slog.Int("prompt_tokens", c.Decision.PromptTokens), slog.Int("overlap_tokens", overlap(c.Decision)))
	}
	if !j.firstToken.IsZero() {
		line = append(line, slog.Duration("ttft", j.firstToken.Sub(j.received).Round(time.Microsecond)))
	}
	line = append(line, slog.Duration("took", took.Round(time.Microsecond)), slog.Int("attempts", j.attempt+1))
	if public == nil {
		return append(line, slog.Int("status", j.status))
	}
	return append(line, slog.Int("status", public.HTTPStatus()), slog.String("reason", apierror.Name(public.Reason)), slog.Any("error", public))
}

// hostPort splits a replica's base URL for callers who open their own connections.
func hostPort(base string) (host string, port int) {
	scheme, rest, _ := strings.Cut(base, "://")
	address, _, _ := strings.Cut(rest, "/")
	if h, p, err := net.SplitHostPort(address); err == nil {
		if port, err = strconv.Atoi(p); err == nil {
			return h, port
		}
	}
	port = 80
	if scheme == "https" {
		port = 443
	}
	return strings.Trim(address, "[]"), port
}
