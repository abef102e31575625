package router

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// The response headers that explain a choice.
const (
	headerRequestID = "X-Request-Id"
	headerReplica   = "X-Kvpilot-Replica"
	headerAddress   = "X-Kvpilot-Address"
	headerOverlap   = "X-Kvpilot-Overlap-Tokens"
	headerPolicy    = "X-Kvpilot-Policy"
	headerChoice    = "X-Kvpilot-Choice"
	headerDecision  = "X-Kvpilot-Decision"
	headerOverhead  = "X-Kvpilot-Overhead-Us"
)

// explain puts into h what the operator lets clients know about the choice.
func (rq *request) explain(a *attempt, h http.Header) {
	if rq.call.RequestID != "" {
		h[headerRequestID] = []string{rq.call.RequestID}
	}
	if rq.dropped != 0 {
		h[headerDropped] = []string{strings.Join(rq.dropped.Names(), ", ")}
	}
	show := rq.set.Headers
	c := a.choice
	if show.Replica {
		h[headerReplica] = []string{string(c.Replica.ID)}
	}
	if show.Address {
		h[headerAddress] = []string{c.Replica.URL}
	}
	overlap := rq.set.showsOverlap(rq.call.Caller)
	if show.Overlap && overlap {
		h[headerOverlap] = []string{strconv.Itoa(c.Held())}
	}
	if show.Policy {
		h[headerPolicy] = []string{string(c.Decision.Policy)}
		if c.Decision.Reason != "" && overlap { // there was a choice; its reason reveals the caches
			h[headerChoice] = []string{string(c.Decision.Reason)}
		}
	}
	if show.Decision {
		h[headerDecision] = []string{rq.id}
	}
	if show.Overhead {
		h[headerOverhead] = []string{strconv.FormatInt(a.overhead.Microseconds(), 10)}
	}
}

// overlap is how many of the prompt's tokens the chosen rank was believed to hold, in all tiers.
func overlap(d *decision.Decision) int {
	if pick := d.Pick(); pick != nil {
		return int(pick.GPU + pick.CPU + pick.Disk)
	}
	return 0
}

// ends accounts for the ends of requests.
type ends struct {
	metrics *metrics
	count   Counter
	log     *slog.Logger
}

// finish is the one place where a request's end is counted, logged and put on its span.
func (e *ends) finish(ctx context.Context, rq *request, d *delivery, err error) {
	took := time.Since(rq.received)
	public := apierror.From(err)
	if public == nil && d.scan.Failed() { // the client knows it from the engine
		public = apierror.New(apierror.UpstreamError, "the replica reported an error in its stream", nil)
	}
	e.metrics.end(ctx, rq, d, public, took)
	e.countEnd(d, public)
	rq.story.leave(rq, d, public)
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
	if !e.log.Enabled(ctx, level) {
		return
	}
	e.log.LogAttrs(ctx, level, "request", e.logLine(rq, d, public, took)...)
}

// logLine is the one line that a request leaves; nothing of its prompt or answer is in it.
func (e *ends) logLine(rq *request, d *delivery, public *apierror.Error, took time.Duration) []slog.Attr {
	line := append(make([]slog.Attr, 0, 16),
		slog.String("id", rq.call.RequestID), slog.String("decision", rq.id), slog.String("route", rq.call.Route.String()))
	if rq.parsed != nil {
		line = append(line, slog.String("model", clip(rq.parsed.Model, 128)), slog.Bool("stream", rq.parsed.Stream))
	}
	if d.attempt != nil {
		c := d.attempt.choice
		line = append(line, slog.String("replica", string(c.Replica.ID)), slog.Int("prompt_tokens", c.Decision.PromptTokens), slog.Int("overlap_tokens", c.Held()))
	}
	if !d.firstToken.IsZero() {
		line = append(line, slog.Duration("ttft", d.firstToken.Sub(rq.received).Round(time.Microsecond)))
	}
	line = append(line, slog.Duration("took", took.Round(time.Microsecond)), slog.Int("attempts", max(1, d.attempts)))
	if public == nil {
		return append(line, slog.Int("status", d.status))
	}
	if d.doubts.cause != retry.CauseNone {
		line = append(line, slog.String("cause", d.doubts.cause.String()))
	}
	return append(line, slog.Int("status", public.HTTPStatus()), slog.String("reason", apierror.Name(public.Reason)), slog.Any("error", public))
}

// hostPort splits a replica's base URL for callers that open their own connections.
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
