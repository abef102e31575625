package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/admission"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/replica"
	"github.com/kvpilot/kvpilot/server/selector"
)

// mostVisited bounds the requests that one visit looks at.
const mostVisited = 256

// hasRoom reports whether a request may go to the candidate now.
func (c *Chooser) hasRoom(cand *decision.Candidate) bool {
	return cand.Backlog+cand.Planned < c.config.HoldAbove.Seconds()
}

// room counts the ranks that may serve and says in how long the first of them has room.
func (c *Chooser) room(d *decision.Decision) (servers int, soonest time.Duration) {
	least := -1.0
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		if cand.Veto != decision.VetoNone {
			continue
		}
		servers++
		if least < 0 || cand.Backlog < least {
			least = cand.Backlog
		}
	}
	return servers, duration(max(0, least-c.config.HoldAbove.Seconds()))
}

// pump offers room to those who wait. One visit runs at a time; who comes meanwhile leaves word.
func (c *Chooser) pump(ln *line) {
	ln.again.Store(true)
	for ln.again.Load() && ln.pumping.TryLock() {
		ln.again.Store(false)
		c.visit(ln)
		ln.pumping.Unlock()
	}
}

// visit plays the queue forward in the order in which it should go: each request takes the rank
// that would serve it soonest, given what those before it will bring there; where that rank has
// room now, the request goes. Those that must wait count as planned work on their rank, so that
// the rest see the whole line for a hot prefix and spread it when waiting costs more.
func (c *Chooser) visit(ln *line) {
	now := c.clock()
	for _, t := range ln.hold.Expired(now) {
		t.Owner.(*waiter).end(nil, &Refused{Cause: admission.Cause(admission.ErrTimeout), RetryAfter: time.Second})
	}
	ln.wakeAt.Store(0)
	if ln.hold.Len() == 0 {
		return
	}
	s := c.scratch.Get().(*scratch)
	defer c.scratch.Put(s)
	clear(ln.planned)
	limit := c.config.HoldAbove.Seconds()
	wake := -1.0
	ln.hold.Visit(now, mostVisited, func(t *admission.Ticket) admission.Verdict {
		w := t.Owner.(*waiter)
		if err := c.look(s, w.req, ln, now, ln.planned); err != nil {
			w.end(nil, err)
			return admission.Drop
		}
		selector.Choose(&s.d)
		if s.d.Chosen < 0 {
			choice, err := c.commit(s, w.req, ln, now, w)
			w.end(choice, err)
			return admission.Drop
		}
		cand := s.d.Pick()
		t.Work = cand.Prefill
		if c.hasRoom(cand) {
			choice, err := c.commit(s, w.req, ln, now, w)
			w.end(choice, err)
			if err != nil {
				return admission.Drop
			}
			return admission.Release
		}
		ln.planned[cand.Slot] += cand.Prefill * (1 + cand.Slowdown)
		open := false
		for i := range s.d.Candidates {
			o := &s.d.Candidates[i]
			if o.Veto != decision.VetoNone {
				continue
			}
			if over := o.Backlog - limit; over >= 0 && (wake < 0 || over < wake) {
				wake = over
			}
			open = open || o.Backlog < limit && o.Backlog+ln.planned[o.Slot] < limit
		}
		if !open {
			return admission.Stop
		}
		return admission.Keep
	})
	if ln.hold.Len() > 0 {
		ln.wakeAt.Store(c.since(now) + int64(duration(max(wake, minWake.Seconds()))))
	}
}

// minWake keeps visits that nothing but time brings about apart.
const minWake = 5 * time.Millisecond

// Tick visits the lines whose time has come and says when to call it next; false when nobody
// waits. Run calls it; a player of traces calls it in virtual time.
func (c *Chooser) Tick() (next time.Time, ok bool) {
	if c.queue.Len() == 0 {
		return time.Time{}, false
	}
	now := c.since(c.clock())
	for _, ln := range *c.lineList.Load() {
		if ln.hold.Len() == 0 {
			continue
		}
		if at := ln.wakeAt.Load(); at == 0 || at <= now {
			c.pump(ln)
		}
	}
	return c.NextWake()
}

// NextWake says when Tick should be called next; false when nobody waits.
func (c *Chooser) NextWake() (next time.Time, ok bool) {
	if c.queue.Len() == 0 {
		return time.Time{}, false
	}
	var soonest int64
	for _, ln := range *c.lineList.Load() {
		if at := ln.wakeAt.Load(); ln.hold.Len() > 0 && at != 0 && (soonest == 0 || at < soonest) {
			soonest = at
		}
	}
	if soonest == 0 {
		return time.Time{}, false
	}
	return c.start.Add(time.Duration(soonest)), true
}

// freed tells that a rank has less to do than before: those who wait are looked at.
func (c *Chooser) freed() {
	if c.queue.Len() == 0 {
		return
	}
	for _, ln := range *c.lineList.Load() {
		if ln.hold.Len() > 0 {
			c.pump(ln)
		}
	}
}

// shutDown refuses everybody who waits.
func (c *Chooser) shutDown() {
	for _, ln := range *c.lineList.Load() {
		for _, t := range ln.hold.Drain() {
			t.Owner.(*waiter).end(nil, &Refused{Cause: admission.Cause(admission.ErrShutdown), RetryAfter: time.Second})
		}
	}
}

func (ln *line) plannedIf(visiting bool) map[replica.Slot]float64 {
	if visiting {
		return ln.planned
	}
	return nil
}
