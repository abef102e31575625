package decisionlog

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/journal"
)

// Entry is one decision and, when it has ended, its outcome. It is immutable.
type Entry struct {
	Decision *decision.Decision
	// Outcome is nil while the request is in flight, and for dry runs.
	Outcome *decision.Outcome
}

// Params is what the process passes in addition to the Config.
type Params struct {
	Log   *slog.Logger
	Meter metric.MeterProvider
	// Line is what the file has of an entry, as JSON. It is required with a file, and called by Run.
	Line func(Entry) json.Marshaler
}

// kept is an Entry as the ring has it.
type kept struct {
	decision *decision.Packed // nil: an empty place
	outcome  *decision.Outcome
}

func (k kept) entry() Entry { return Entry{Decision: k.decision.Unpack(), Outcome: k.outcome} }

func unpack(list []kept) []Entry {
	if len(list) == 0 {
		return nil
	}
	all := make([]Entry, len(list))
	for i, k := range list {
		all[i] = k.entry()
	}
	return all
}

// key names one attempt.
type key struct {
	id      string
	attempt int
}

// Log is the memory of decisions.
type Log struct {
	file    *journal.Writer
	line    func(Entry) json.Marshaler
	metrics *metrics

	mu    sync.RWMutex
	ring  []kept // guarded by mu
	next  int    // guarded by mu: the place that is overwritten next
	at    map[key]int
	byReq map[string][]key
	subs  map[*Subscription]struct{}
	// names are those of each model's last record, for the next one to share; guarded by mu.
	names map[string][]replica.ID
}

// New makes an empty Log. It opens nothing: Run does.
func New(c Config, p Params) *Log {
	l := &Log{
		ring:  make([]kept, c.Size),
		at:    make(map[key]int, c.Size),
		byReq: make(map[string][]key, c.Size),
		subs:  map[*Subscription]struct{}{},
		names: map[string][]replica.ID{},
		line:  p.Line,
	}
	l.metrics = newMetrics(p.Meter)
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if c.File != "" {
		l.file = journal.New(journal.Params{
			Name: "decision log", Path: c.File, MaxBytes: c.FileMaxBytes, Log: p.Log, Dropped: func(n int64) { l.metrics.dropped("file", n) },
		})
	}
	return l
}

// Run writes the file until ctx ends, and what is queued then. A Log without a file needs no Run,
// and Run returns when ctx ends.
func (l *Log) Run(ctx context.Context) error {
	if l.file == nil {
		<-ctx.Done()
		return nil
	}
	return l.file.Run(ctx)
}

// Add remembers a decision in the place of the oldest one. One without a replica has ended with it.
func (l *Log) Add(d *decision.Decision) {
	e := Entry{Decision: d}
	if d.Pick() == nil && !d.DryRun {
		e.Outcome = &decision.Outcome{
			ID: d.ID, Attempt: d.Attempt, Slot: replica.NoSlot, End: decision.EndUnserved,
			PromptTokens: -1, OutputTokens: -1, CachedTokens: -1,
		}
	}
	packed := l.pack(d)
	l.mu.Lock()
	l.forget(l.next)
	k := key{d.ID, d.Attempt}
	l.ring[l.next] = kept{packed, e.Outcome}
	l.at[k] = l.next
	if d.RequestID != "" {
		l.byReq[d.RequestID] = append(l.byReq[d.RequestID], k)
	}
	l.next = (l.next + 1) % len(l.ring)
	l.publish(e)
	l.mu.Unlock()
	l.metrics.decided(d)
	if e.Outcome != nil {
		l.metrics.ended(e.Outcome)
		l.write(e)
	}
}

// maxNames bounds the models whose records' names are looked for.
const maxNames = 256

// pack packs a decision, with the names of the last record of its model if they are the same.
func (l *Log) pack(d *decision.Decision) *decision.Packed {
	l.mu.RLock()
	names := l.names[d.Model]
	l.mu.RUnlock()
	p := decision.Pack(d, names)
	if own := p.Names(); len(own) > 0 && (len(names) == 0 || &own[0] != &names[0]) {
		l.mu.Lock()
		if len(l.names) >= maxNames {
			clear(l.names)
		}
		l.names[d.Model] = own
		l.mu.Unlock()
	}
	return p
}

// write offers an ended decision to the file.
func (l *Log) write(e Entry) {
	if l.file != nil {
		l.file.Offer(l.line(e))
	}
}

// forget empties a place of the ring; mu is held.
func (l *Log) forget(place int) {
	if l.ring[place].decision == nil {
		return
	}
	old := l.ring[place].decision.Head()
	k := key{old.ID, old.Attempt}
	if l.at[k] == place {
		delete(l.at, k)
	}
	if keys := l.byReq[old.RequestID]; len(keys) > 0 {
		// the oldest decision of a request is the first of its keys
		if keys = keys[1:]; len(keys) == 0 {
			delete(l.byReq, old.RequestID)
		} else {
			l.byReq[old.RequestID] = keys
		}
	}
	l.ring[place] = kept{}
}

// Finish says how a decision ended. Decisions that are no longer remembered are only written to
// the file and to subscribers when they are still known; the first outcome of an attempt stays.
func (l *Log) Finish(o decision.Outcome) {
	l.metrics.ended(&o)
	l.mu.Lock()
	place, known := l.at[key{o.ID, o.Attempt}]
	if !known || l.ring[place].outcome != nil {
		l.mu.Unlock()
		return
	}
	l.ring[place].outcome = &o
	var e Entry
	if len(l.subs) > 0 || l.file != nil {
		e = l.ring[place].entry()
	}
	l.publish(e)
	l.mu.Unlock()
	l.write(e)
}

// Get returns one attempt of a decision.
func (l *Log) Get(id string, attempt int) (Entry, bool) {
	l.mu.RLock()
	place, ok := l.at[key{id, attempt}]
	if !ok {
		l.mu.RUnlock()
		return Entry{}, false
	}
	found := l.ring[place]
	l.mu.RUnlock()
	return found.entry(), true
}

// maxAttempts bounds the attempts that Find looks for.
const maxAttempts = 64

// Find returns every attempt of a decision, oldest first.
func (l *Log) Find(id string) []Entry {
	var list []kept
	l.mu.RLock()
	for attempt := range maxAttempts {
		if place, ok := l.at[key{id, attempt}]; ok {
			list = append(list, l.ring[place])
		}
	}
	l.mu.RUnlock()
	return unpack(list)
}

// FindRequest returns the decisions made for a client's request id, oldest first.
func (l *Log) FindRequest(requestID string) []Entry {
	var list []kept
	l.mu.RLock()
	for _, k := range l.byReq[requestID] {
		if place, ok := l.at[k]; ok {
			list = append(list, l.ring[place])
		}
	}
	l.mu.RUnlock()
	return unpack(list)
}

// Filter narrows a list: empty fields let everything through.
type Filter struct {
	Model   string
	Replica string
	// Own lets only the decisions of Tenant through, which may be empty.
	Own    bool
	Tenant string
	// Of lets only the decisions of that tenant through.
	Of string
	// Ends lets only decisions through that ended so.
	Ends []decision.End
	// SlowerThan, if above zero, lets only decisions through whose first token took longer, or that have had none for so long.
	SlowerThan time.Duration
}

// lets reports whether d, whose candidates are not read, passes. picked is its replica; empty when there is none.
func (f Filter) lets(d *decision.Decision, picked replica.ID, o *decision.Outcome, now time.Time) bool {
	if f.Own && d.Tenant != f.Tenant || f.Model != "" && d.Model != f.Model || f.Of != "" && d.Tenant != f.Of {
		return false
	}
	if len(f.Ends) > 0 && (o == nil || !slices.Contains(f.Ends, o.End)) {
		return false
	}
	if f.SlowerThan > 0 && !slowerThan(d, o, f.SlowerThan, now) {
		return false
	}
	return f.Replica == "" || string(picked) == f.Replica
}

// slowerThan reports whether the first token took longer than limit, or is not there after it. An answer whose first token
// was not seen, because it was not streamed or failed before, counts by its end. Dry runs have none.
func slowerThan(d *decision.Decision, o *decision.Outcome, limit time.Duration, now time.Time) bool {
	switch {
	case d.DryRun:
		return false
	case o == nil:
		return now.Sub(d.At) > limit
	case o.TTFT > 0:
		return o.TTFT > limit
	}
	return o.Duration > limit
}

// Last returns up to limit decisions that the filter lets through, newest first.
func (l *Log) Last(limit int, f Filter) []Entry {
	now := time.Now()
	var list []kept
	l.mu.RLock()
	for i := range l.ring {
		k := l.ring[(l.next-1-i+2*len(l.ring))%len(l.ring)]
		if k.decision == nil || len(list) == limit {
			break
		}
		if f.lets(k.decision.Head(), k.decision.Picked(), k.outcome, now) {
			list = append(list, k)
		}
	}
	l.mu.RUnlock()
	return unpack(list)
}
