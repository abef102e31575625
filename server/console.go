package server

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/admin/console"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// recentDecisions is how many decisions the console lists.
const recentDecisions = 25

// consoleSource is the router as the console sees it.
type consoleSource struct {
	parts   *parts
	tracer  trace.Tracer
	version string
	began   time.Time
	ready   func() error
	traces  *traceRing
}

// State puts the present state together.
func (c *consoleSource) State() console.State {
	p := c.parts
	policy := p.chooser.Config()
	stats := p.kvindex.Stats()
	s := console.State{
		Version: c.version, Uptime: time.Since(c.began).Seconds(), Policy: console.Policy{Name: string(policy.Policy), Shadow: string(policy.Shadow)},
		Index: console.Index{Blocks: stats.Blocks, MaxBlocks: stats.MaxBlocks, Bytes: stats.Bytes, Cut: stats.Cut},
		Queue: console.Queue{Waiting: p.chooser.Waiting(), Booked: p.book.Live()},
	}
	if err := c.ready(); err != nil {
		s.NotReady = err.Error()
	}
	for _, m := range p.tokens.Parity() {
		s.Parity = append(s.Parity, console.Parity{Model: m.Model, State: m.State, Detail: m.Detail})
	}
	s.Replicas = c.replicas(stats)
	for _, e := range p.decisions.Last(recentDecisions, decisionlog.Filter{}) {
		s.Recent = append(s.Recent, entry(e))
	}
	return s
}

func (c *consoleSource) replicas(stats kvindex.Stats) []console.Replica {
	p := c.parts
	held := map[replica.Slot]kvindex.RankStats{}
	for _, r := range stats.Ranks {
		held[r.Slot] = r
	}
	rates := map[replica.Slot]chooser.Rate{}
	for _, r := range p.chooser.Rates() {
		rates[r.Slot] = r
	}
	feeds := map[replica.Slot]kvevents.Status{}
	for _, f := range p.events.Statuses() {
		feeds[f.Slot] = f
	}
	snapshot := p.registry.Snapshot()
	list := make([]console.Replica, 0, len(snapshot.Replicas))
	for _, r := range snapshot.Replicas {
		details := snapshot.Details(r.ID)
		out := console.Replica{
			ID: string(r.ID), URL: r.URL, State: r.State.String(), Since: r.Since, Version: r.Version,
			Drained: details.Drained, Breaker: p.breaker.State(r.ID).String(), Error: details.LastError, Models: []string{},
		}
		for _, m := range r.Models {
			out.Models = append(out.Models, m.ID)
		}
		for index, slot := range r.Slots {
			out.Ranks = append(out.Ranks, c.rank(index, slot, held[slot], rates[slot], feeds[slot]))
		}
		list = append(list, out)
	}
	return list
}

func (c *consoleSource) rank(index int, slot replica.Slot, held kvindex.RankStats, rate chooser.Rate, feed kvevents.Status) console.Rank {
	now := time.Now()
	load := c.parts.book.View(slot, now)
	out := console.Rank{
		Index: index, Feed: held.State.String(), FeedError: feed.LastError, LagMS: millis(feed.Lag), Gaps: feed.Gaps, Resets: feed.Resets,
		Blocks: held.Blocks[kvblock.TierGPU] + held.Guessed, LowerBlocks: held.Blocks[kvblock.TierCPU] + held.Blocks[kvblock.TierDisk],
		Capacity: held.Capacity, BlockSize: held.BlockSize,
		InFlight: load.InFlight, Prefilling: load.Prefilling, QueuedMS: millis(load.PrefillTime), QueuedToks: load.PrefillTokens, Decode: load.DecodeBlocks,
		EngineRunning: -1, EngineWaiting: -1, KVUsage: -1,
		TokensPerSecond: rate.TokensPerSecond, StepMS: 1000 * rate.StepTime, Samples: rate.Samples, Busy: rate.Busy,
		Spread: rate.Spread, Source: rate.Source.String(), PredictionError: rate.Error,
	}
	if s, ok := c.parts.stats.Stats(slot); ok && s.Fresh(now) {
		out.EngineRunning, out.EngineWaiting, out.KVUsage = s.Running, s.Waiting, s.KVUsage
	}
	return out
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// entry cuts a decision down to a line.
func entry(e decisionlog.Entry) console.Entry {
	d := e.Decision
	out := console.Entry{
		ID: d.ID, RequestID: d.RequestID, At: d.At, Model: d.Model, Policy: string(d.Policy), Reason: string(d.Reason),
		Tokens: d.PromptTokens, HeldMS: millis(d.Held), CachedTokens: -1, DryRun: d.DryRun,
	}
	if pick := d.Pick(); pick != nil {
		out.Replica, out.Rank, out.PredictedMS = string(pick.Replica), int(pick.Rank), 1000*pick.TTFT
		out.Overlap = int(pick.GPU + pick.CPU + pick.Disk)
	}
	if o := e.Outcome; o != nil {
		out.End, out.TTFTMS = o.End.String(), millis(o.TTFT)
		if !o.Counted {
			out.CachedTokens = o.CachedTokens
		}
	}
	return out
}

// Explain finds a decision by its own id or by the client's request id.
func (c *consoleSource) Explain(id string) []console.Full {
	entries := c.parts.decisions.Find(id)
	if len(entries) == 0 {
		entries = c.parts.decisions.FindRequest(id)
	}
	list := []console.Full{}
	for _, e := range entries {
		list = append(list, console.Full{Decision: e.Decision, Outcome: e.Outcome})
	}
	return list
}

// DryRun says where a prompt would go.
func (c *consoleSource) DryRun(ctx context.Context, model, text string, body []byte) (*decision.Decision, error) {
	q := &router.Question{Model: model, Text: text, Body: body, Route: openai.RouteAny, DryRun: true, Received: time.Now()}
	ctx, s := span.Start(ctx, c.tracer, span.DryRun, trace.SpanKindInternal)
	defer s.End()
	answer, err := c.parts.router.Choose(ctx, q)
	if err != nil {
		return nil, err
	}
	return answer.Decision, nil
}

// Traces returns the last traces, newest first.
func (c *consoleSource) Traces() []console.Trace { return c.traces.list() }

// traceRing keeps the spans of the last requests for the console's waterfall.
type traceRing struct {
	mu   sync.Mutex
	ring [24][]sdktrace.ReadOnlySpan // guarded by mu
	next int                         // guarded by mu
}

func (r *traceRing) add(spans []sdktrace.ReadOnlySpan) {
	if len(spans) < 2 {
		return // nothing to draw
	}
	r.mu.Lock()
	r.ring[r.next%len(r.ring)] = spans
	r.next++
	r.mu.Unlock()
}

func (r *traceRing) list() []console.Trace {
	r.mu.Lock()
	ring, next := r.ring, r.next
	r.mu.Unlock()
	list := []console.Trace{}
	for i := range len(ring) {
		if spans := ring[(next-1-i+2*len(ring))%len(ring)]; spans != nil {
			list = append(list, drawn(spans))
		}
	}
	return list
}

// drawn turns spans into what the waterfall needs. The first local span ended last.
func drawn(spans []sdktrace.ReadOnlySpan) console.Trace {
	root := spans[len(spans)-1]
	began := root.StartTime()
	t := console.Trace{
		ID: root.SpanContext().TraceID().String(), Name: root.Name(),
		At: began, Duration: millis(root.EndTime().Sub(began)),
	}
	for _, s := range spans {
		out := console.Span{
			ID: s.SpanContext().SpanID().String(), Name: s.Name(),
			Start: millis(s.StartTime().Sub(began)), Duration: millis(s.EndTime().Sub(s.StartTime())),
			Failed: s.Status().Code == codes.Error, Attributes: map[string]string{},
		}
		if s.Parent().IsValid() {
			out.Parent = s.Parent().SpanID().String()
		}
		for _, a := range s.Attributes() {
			out.Attributes[string(a.Key)] = text(a.Value)
		}
		for _, e := range s.Events() {
			name := e.Name
			for _, a := range e.Attributes {
				name += " " + text(a.Value)
			}
			out.Events = append(out.Events, console.Event{Name: name, At: millis(e.Time.Sub(began))})
		}
		t.Failed = t.Failed || out.Failed
		t.Spans = append(t.Spans, out)
	}
	slices.SortStableFunc(t.Spans, func(a, b console.Span) int { return cmp.Compare(a.Start, b.Start) })
	return t
}

// text is an attribute's value for people.
func text(v attribute.Value) string {
	if v.Type() == attribute.STRINGSLICE {
		return strings.Join(v.AsStringSlice(), ", ")
	}
	return v.String()
}
