package chooser

import (
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// mostVisited bounds the requests that one visit looks at.
const mostVisited = 128

// hasRoom reports whether a request may go to the candidate now.
func (c *Chooser) hasRoom(cand *decision.Candidate) bool {
	return cand.Backlog+cand.Planned < c.enough(cand)
}

// holds reports whether requests wait for room at all: the setting may be turned off while some wait.
func (c *Chooser) holds() bool { return c.settings.Load().holdAbove > 0 }

// enough is the predicted prefill time from which a rank has enough ahead: a full step, so that the
// engine can fill the next one while the router learns of this one's end, and at most hold_above. A rank whose speed is a guess has
// more: it may be that much faster, and a request that was held back on a guess teaches nothing better.
func (c *Chooser) enough(cand *decision.Candidate) float64 {
	most := c.settings.Load().holdAbove
	if most == 0 { // turned off while requests wait: all are released
		return math.Inf(1)
	}
	if cand.FullStep > 0 {
		most = min(most, cand.FullStep)
	}
	if cand.Speed == decision.SpeedPrior || cand.Speed == decision.SpeedEngine {
		most *= 1 + cand.Spread
	}
	return most
}

// room counts the ranks that may serve and returns in how long the first of them has room.
func (c *Chooser) room(d *decision.Decision) (servers int, soonest time.Duration) {
	least := -1.0
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		if cand.Veto != decision.VetoNone {
			continue
		}
		servers++
		if over := max(0, cand.Backlog-c.enough(cand)); least < 0 || over < least {
			least = over
		}
	}
	return servers, duration(max(0, least))
}

// offerRoom offers room to the requests that wait. One visit runs at a time; a call during a visit starts another one.
func (c *Chooser) offerRoom(ln *line) {
	ln.again.Store(true)
	for ln.again.Load() && ln.visiting.TryLock() {
		ln.again.Store(false)
		c.visit(ln)
		ln.visiting.Unlock()
	}
}

// visit plays the queue forward in the order in which it should go: each request takes the rank
// that would serve it soonest, given what those before it will bring there; where that rank has
// room now, the request is released. Requests that must wait count as planned work on their rank, so that
// the rest see the whole line for a hot prefix and spread it when waiting costs more.
func (c *Chooser) visit(ln *line) {
	now := c.clock()
	for _, t := range ln.hold.Expired(now) {
		t.Owner.(*waiter).end(nil, &Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
	}
	ln.wakeAt.Store(0)
	ln.visited.Store(c.since(now))
	if ln.hold.Len() == 0 {
		return
	}
	s := c.scratch.Get().(*scratch)
	s.visit = c.visits.Add(1)
	defer func() {
		s.visit, s.since = 0, time.Time{}
		c.scratch.Put(s)
	}()
	ln.planned = make(map[replica.Slot]float64, 16)
	soonest := maxWake.Seconds()
	ln.hold.Visit(now, mostVisited, func(t *holdqueue.Ticket) holdqueue.Verdict {
		w := t.Owner.(*waiter)
		verdict := c.offer(s, w, now)
		if verdict != holdqueue.Keep {
			return verdict
		}
		open := false
		for i := range s.d.Candidates {
			o := &s.d.Candidates[i]
			if o.Veto != decision.VetoNone {
				continue
			}
			if over := o.Backlog - c.enough(o); over >= 0 {
				soonest = min(soonest, over)
			} else if o.Backlog+ln.planned[o.Slot] < c.enough(o) {
				open = true
			}
		}
		if !open {
			return holdqueue.Stop
		}
		return holdqueue.Keep
	})
	wanted := ln.planned // read by others from now on: the next visit makes a map of its own
	ln.wanted.Store(&wanted)
	if ln.hold.Len() > 0 {
		at := c.since(now) + int64(max(minWake, duration(soonest)))
		ln.wakeAt.Store(at)
		if at < c.sleepsUntil.Load() { // Run went to sleep before this request waited
			c.wakeRun()
		}
	}
}

// sleep is how long Run may sleep: until the next visit. A visit that is planned at the same time, for earlier,
// either is seen here or sees until when Run sleeps.
func (c *Chooser) sleep() time.Duration {
	now := c.clock()
	until := now.Add(sweepEvery)
	c.sleepsUntil.Store(c.since(until))
	if at, ok := c.NextWake(); ok && at.Before(until) {
		until = at
		c.sleepsUntil.Store(c.since(until))
	}
	return max(time.Millisecond, until.Sub(now))
}

// wakeRun wakes Run.
func (c *Chooser) wakeRun() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// offer decides about a waiting request. The index's answer about its prompt may be a moment old while
// it waits; the index is asked again before it is released.
func (c *Chooser) offer(s *scratch, w *waiter, now time.Time) holdqueue.Verdict {
	ln := w.line
	s.known, s.since = nil, w.ticket.Arrived()
	s.call, s.full = w.call, append(s.full[:0], w.full...)
	if now.Sub(w.matched) < matchLife {
		s.known = w.overlaps
	}
	stale := s.known != nil
	for {
		if err := c.look(s, w.req, ln, now, ln.planned); err != nil {
			w.end(nil, err)
			return holdqueue.Drop
		}
		s.avoidFull()
		s.choose()
		if s.d.Chosen < 0 {
			choice, err := c.commit(s, w.req, ln, now, w)
			w.end(choice, err)
			return holdqueue.Drop
		}
		if err := c.unreachable(&s.d, w.req); err != nil {
			w.end(nil, err)
			return holdqueue.Drop
		}
		if !stale {
			w.overlaps, w.matched = append(w.overlaps[:0], s.overlaps...), now
		}
		if !c.hasRoom(s.d.Pick()) || !stale {
			break
		}
		stale, s.known = false, nil
	}
	s.known = nil
	cand := s.d.Pick()
	w.ticket.Work, w.ticket.Cost = cand.Prefill, cost(&s.d)
	if !c.hasRoom(cand) || c.holds() && !s.whole && w.yields.to(cand, now) {
		ln.planned[cand.Slot] += cand.Prefill * (1 + cand.Slowdown)
		return holdqueue.Keep
	}
	choice, err := c.commit(s, w.req, ln, now, w)
	w.end(choice, err)
	if err != nil {
		return holdqueue.Drop
	}
	return holdqueue.Release
}

// cost is what a tenant is charged for the pick, in seconds of its engine: the prefill, and of each step of the
// answer its part among the sequences that share it.
func cost(d *decision.Decision) float64 {
	cand := d.Pick()
	return cand.Prefill + float64(outputs(d.ExpectedOutput))*cand.StepTime/float64(cand.Requests+1)
}

const (
	// matchLife is how long a waiting request's overlap is used before the index is asked again.
	matchLife = 250 * time.Millisecond
	// minWake and maxWake bound the time between visits that nothing but time brings about;
	// quietly is the time that must pass before a visit for a rank that no request waits for.
	minWake = 5 * time.Millisecond
	maxWake = 50 * time.Millisecond
	quietly = 20 * time.Millisecond
)

// Tick visits the lines that are due and returns when to call it next; false when no request
// waits. Run calls it; a player of traces calls it in virtual time.
func (c *Chooser) Tick() (next time.Time, ok bool) {
	if c.queue.Len() == 0 {
		return time.Time{}, false
	}
	now := c.since(c.clock())
	for _, ln := range *c.lineList.Load() {
		if at := ln.memory.wakeAt.Load(); ln.memory.hold.Len() > 0 && at <= now {
			c.visitMemory(ln)
		}
		if ln.hold.Len() == 0 {
			continue
		}
		if at := ln.wakeAt.Load(); at == 0 || at <= now {
			c.offerRoom(ln)
		}
	}
	return c.NextWake()
}

// NextWake returns when Tick should be called next; false when no request waits.
func (c *Chooser) NextWake() (next time.Time, ok bool) {
	if c.queue.Len() == 0 {
		return time.Time{}, false
	}
	var soonest int64
	for _, ln := range *c.lineList.Load() {
		if at := ln.wakeAt.Load(); ln.hold.Len() > 0 && at != 0 && (soonest == 0 || at < soonest) {
			soonest = at
		}
		if at := ln.memory.wakeAt.Load(); ln.memory.hold.Len() > 0 && at != 0 && (soonest == 0 || at < soonest) {
			soonest = at
		}
	}
	if soonest == 0 {
		return time.Time{}, false
	}
	return c.start.Add(time.Duration(soonest)), true
}

// freed notes that the rank at slot has less to do than before: the requests that wait for it are looked
// at now, others soon.
func (c *Chooser) freed(slot replica.Slot) {
	if c.queue.Len() == 0 {
		return
	}
	for _, ln := range *c.lineList.Load() {
		c.freedMemory(ln)
		if ln.hold.Len() == 0 {
			continue
		}
		if wanted := ln.wanted.Load(); wanted != nil {
			if _, ok := (*wanted)[slot]; !ok && c.since(c.clock())-ln.visited.Load() < int64(quietly) {
				continue
			}
		}
		c.offerRoom(ln)
	}
}

// drain rejects every request that waits.
func (c *Chooser) drain() {
	for _, ln := range *c.lineList.Load() {
		for _, t := range ln.hold.Drain() {
			t.Owner.(*waiter).end(nil, &Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
		}
		for _, t := range ln.memory.hold.Drain() {
			if w := t.Owner.(*waiter); w.memory.expire() {
				w.end(nil, &Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
			}
		}
	}
}

func (ln *line) plannedIf(visiting bool) map[replica.Slot]float64 {
	if visiting {
		return ln.planned
	}
	return nil
}
