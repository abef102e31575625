package kvevents

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
)

// Still calls f while no event of the slot is applied. position says how far the feed is in the engine's numbering, for
// Continue; nil when no other feed could continue there. f must be short: the slot's events wait.
func (p *Plane) Still(slot replica.Slot, f func(position []byte)) {
	p.mu.Lock()
	feed := p.feeds[slot]
	p.mu.Unlock()
	if feed == nil {
		f(nil)
		return
	}
	feed.turn.Lock()
	defer feed.turn.Unlock()
	f(feed.follower.position())
}

// DelayFirstReplays has feeds of which nothing is known wait until the given time before they ask their engines for everything:
// a position may come that makes it needless. Their events wait too. An earlier time, or a zero one, shortens the wait.
func (p *Plane) DelayFirstReplays(until time.Time) {
	if until.IsZero() {
		p.delayed.Store(0)
		return
	}
	p.delayed.Store(until.UnixNano())
}

// delays reports whether first replays wait.
func (p *Plane) delays(now time.Time) bool { return now.UnixNano() < p.delayed.Load() }

// Continued is the fate of a position.
type Continued uint8

const (
	// ContinuedNone: the slot has no feed.
	ContinuedNone Continued = iota
	// ContinuedHere: the feed knows as much itself, or a different engine process.
	ContinuedHere
	// ContinuedThere: the feed continues at the position.
	ContinuedThere
)

// Continue makes the feed of slot continue at a position that another feed of the same engine gave to Still, in this process or
// another. It then calls fill, which replaces the sink's blocks by the position's. larger says that these are more than the sink holds.
// The engine is asked for the batches that followed; when it turns out to be another process, or no longer
// has them, the sink is reset as ever.
func (p *Plane) Continue(slot replica.Slot, position []byte, larger bool, fill func()) Continued {
	at, ok := sequence.ParsePosition(position)
	p.mu.Lock()
	f := p.feeds[slot]
	p.mu.Unlock()
	if f == nil || f.events.Endpoint == "" {
		return ContinuedNone
	}
	f.turn.Lock()
	defer f.turn.Unlock()
	now := time.Now()
	switch {
	case f.closed.Load():
		return ContinuedNone
	case !ok || f.follower.state.KnowsBetter(now, &at, larger):
		return ContinuedHere
	}
	fill()
	p.metrics.Continued.Add(background, 1)
	f.follower.begin(sequence.Continued, now, now).Position = &at
	f.follower.handle()
	f.endTurn()
	return ContinuedThere
}
