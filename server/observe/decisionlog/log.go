package decisionlog

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/journal"
)

// Entry is one decision and, when it has ended, its outcome. It is immutable.
type Entry struct {
	Decision *decision.Decision
	// Outcome is nil while the request is in flight, and for dry runs.
	Outcome *decision.Outcome
}

// Params has the arguments of the process in addition to the Config.
type Params struct {
	Scope scope.Scope
	// Lines are required with a file.
	Lines Lines
}

// Lines makes the file's line of an entry, as JSON. Run calls it.
type Lines interface {
	Line(e Entry) json.Marshaler
}

// fileLosses counts the entries that the file has lost.
type fileLosses struct{ *metrics }

// Lost implements journal.Losses.
func (f fileLosses) Lost(n int64) { f.Drops.Count("file", n) }

// key names one attempt.
type key struct {
	id      string
	attempt int
}

// Log is the memory of decisions.
type Log struct {
	file    *journal.Writer
	lines   Lines
	metrics *metrics

	mu    sync.RWMutex
	ring  []Entry // guarded by mu; a zero Decision is an empty place
	next  int     // guarded by mu: the place that is overwritten next
	at    map[key]int
	byReq map[string][]key
	subs  map[*Subscription]struct{}
}

// New makes an empty Log. It opens nothing: Run does.
func New(c Config, p Params) *Log {
	l := &Log{
		ring:  make([]Entry, c.Size),
		at:    make(map[key]int, c.Size),
		byReq: make(map[string][]key, c.Size),
		subs:  map[*Subscription]struct{}{},
		lines: p.Lines,
	}
	l.metrics = newMetrics(p.Scope.Meters())
	if c.File != "" {
		l.file = journal.New(journal.Params{
			Name: "decision log", Path: c.File, MaxBytes: int64(c.FileMaxBytes), Scope: p.Scope, Losses: fileLosses{l.metrics},
		})
	}
	return l
}

// Run writes the file until ctx ends, and the entries queued then. A Log without a file needs no Run,
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
	l.mu.Lock()
	l.forget(l.next)
	k := key{d.ID, d.Attempt}
	l.ring[l.next] = e
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

// write offers an ended decision to the file.
func (l *Log) write(e Entry) {
	if l.file != nil {
		l.file.Offer(l.lines.Line(e))
	}
}

// forget empties a place of the ring; mu is held.
func (l *Log) forget(place int) {
	old := l.ring[place].Decision
	if old == nil {
		return
	}
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
	l.ring[place] = Entry{}
}

// Finish says how a decision ended. Decisions that are no longer remembered are only written to
// the file and to subscribers when they are still known; the first outcome of an attempt stays.
func (l *Log) Finish(o decision.Outcome) {
	l.metrics.ended(&o)
	l.mu.Lock()
	place, known := l.at[key{o.ID, o.Attempt}]
	if !known || l.ring[place].Outcome != nil {
		l.mu.Unlock()
		return
	}
	l.ring[place].Outcome = &o
	e := l.ring[place]
	l.publish(e)
	l.mu.Unlock()
	l.write(e)
}

// Get returns one attempt of a decision.
func (l *Log) Get(id string, attempt int) (Entry, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	place, ok := l.at[key{id, attempt}]
	if !ok {
		return Entry{}, false
	}
	return l.ring[place], true
}

// maxAttempts bounds the attempts that Find looks for.
const maxAttempts = 64

// Find returns every attempt of a decision, oldest first.
func (l *Log) Find(id string) []Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var list []Entry
	for attempt := range maxAttempts {
		if place, ok := l.at[key{id, attempt}]; ok {
			list = append(list, l.ring[place])
		}
	}
	return list
}

// FindRequest returns the decisions made for a client's request id, oldest first.
func (l *Log) FindRequest(requestID string) []Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var list []Entry
	for _, k := range l.byReq[requestID] {
		if place, ok := l.at[k]; ok {
			list = append(list, l.ring[place])
		}
	}
	return list
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
	// Older lets only decisions through that are behind this place in the order of lists; the zero Place lets all through.
	Older Place
	// SlowerThan, if above zero, lets only decisions through whose first token took longer, or that have had none for so long.
	SlowerThan time.Duration
}

// Place is where a decision stands in a list: by its time, the newest first, then by id and attempt.
type Place struct {
	At      time.Time
	ID      string
	Attempt int
}

// placeOf returns a decision's place.
func placeOf(d *decision.Decision) Place { return Place{d.At, d.ID, d.Attempt} }

// Behind reports whether p comes later in a list than q, as the older of two does.
func (p Place) Behind(q Place) bool {
	return cmp.Or(p.At.Compare(q.At), cmp.Compare(p.ID, q.ID), cmp.Compare(p.Attempt, q.Attempt)) < 0
}

func (f Filter) lets(e Entry, now time.Time) bool {
	d := e.Decision
	if !f.Older.At.IsZero() && !placeOf(d).Behind(f.Older) {
		return false
	}
	if f.Own && d.Tenant != f.Tenant || f.Model != "" && d.Model != f.Model || f.Of != "" && d.Tenant != f.Of {
		return false
	}
	if len(f.Ends) > 0 && (e.Outcome == nil || !slices.Contains(f.Ends, e.Outcome.End)) {
		return false
	}
	if f.SlowerThan > 0 && !e.slowerThan(f.SlowerThan, now) {
		return false
	}
	if f.Replica == "" {
		return true
	}
	pick := d.Pick()
	return pick != nil && string(pick.Replica) == f.Replica
}

// slowerThan reports whether the first token took longer than limit, or is not there after it. An answer whose first token
// was not seen, because it was not streamed or failed before, counts by its end. Dry runs have none.
func (e Entry) slowerThan(limit time.Duration, now time.Time) bool {
	switch {
	case e.Decision.DryRun:
		return false
	case e.Outcome == nil:
		return now.Sub(e.Decision.At) > limit
	case e.Outcome.TTFT > 0:
		return e.Outcome.TTFT > limit
	}
	return e.Outcome.Duration > limit
}

// Last returns up to limit decisions that the filter lets through, newest first.
func (l *Log) Last(limit int, f Filter) []Entry {
	now := time.Now()
	l.mu.RLock()
	defer l.mu.RUnlock()
	var list []Entry
	for i := range l.ring {
		place := (l.next - 1 - i + 2*len(l.ring)) % len(l.ring)
		e := l.ring[place]
		if e.Decision == nil || len(list) == limit {
			break
		}
		if f.lets(e, now) {
			list = append(list, e)
		}
	}
	return list
}
