package chooser

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// mostVisited bounds the requests that one visit looks at.
const mostVisited = 128

// holding has requests wait in the hold queue while no suitable rank has room. The state of the wait is in the lines.
type holding struct {
	booker *booker
	clock  *clock.Clock
	alarm  *alarm
	visits atomic.Uint64 // of all lines so far
	counts *waitCounts
}

// wait puts a request in line.
func (h *holding) wait(s *evaluation, w *waiter, deadline time.Time, age time.Duration, now time.Time) error {
	req := w.req
	w.ticket = &holdqueue.Ticket{
		Tenant: req.Tenant, Priority: req.Priority, Age: age, Bytes: req.Bytes, Deadline: deadline, Work: s.computes().Prefill, Cost: cost(&s.d), Owner: w,
	}
	if w.arrived.IsZero() {
		w.arrived = now.Add(-age)
	}
	servers, soonest := h.booker.room().soonest(&s.d)
	if w.stream = !wholly(req, &s.d); w.stream {
		w.line.streams.Add(1)
	}
	if wait, err := w.line.hold.Push(w.ticket, now, servers, soonest); err != nil {
		w.left()
		return &ask.Refused{Cause: holdqueue.Cause(err), RetryAfter: max(wait, time.Second)}
	}
	h.counts.held.Add(1)
	return nil
}

// bookNow books the pick, or returns errNoRoom when the request must wait.
func (h *holding) bookNow(s *evaluation, req *ask.Request, ln *line, now time.Time, w *waiter) (*Choice, error) {
	switch {
	case s.d.Chosen < 0, !s.held:
	case ln.hold.Len() > 0, !h.booker.room().has(s.computes()), !s.whole && new(yielding).to(s.computes(), now):
		return nil, errNoRoom
	}
	return h.booker.commit(s, req, ln.remembered, now, w.waited())
}

// offerRoom offers room to the requests that wait. One visit runs at a time; a call during a visit starts another one.
func (h *holding) offerRoom(ln *line) {
	ln.again.Store(true)
	for ln.again.Load() && ln.visiting.TryLock() {
		ln.again.Store(false)
		h.visit(ln)
		ln.visiting.Unlock()
	}
}

// freed offers room after the rank at slot has less to do than before: at once to the requests that wait for it, to others soon.
func (h *holding) freed(ln *line, slot replica.Slot) {
	if ln.hold.Len() == 0 {
		return
	}
	if wanted := ln.wanted.Load(); wanted != nil {
		if _, ok := (*wanted)[slot]; !ok && h.clock.Since(h.clock.Now())-ln.visited.Load() < int64(quietly) {
			return
		}
	}
	h.offerRoom(ln)
}

// visit plays the queue forward in the order in which it should go: each request takes the rank
// that would serve it soonest, given the work that earlier ones will bring there; where that rank has
// room now, the request is released. Requests that must wait count as planned work on their rank, so that
// the rest see the whole line for a hot prefix and spread it when waiting costs more.
func (h *holding) visit(ln *line) {
	now := h.clock.Now()
	for _, t := range ln.hold.Expired(now) {
		t.Owner.(*waiter).end(nil, &ask.Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
	}
	ln.wakeAt.Store(0)
	ln.visited.Store(h.clock.Since(now))
	if ln.hold.Len() == 0 {
		return
	}
	s := h.booker.borrow(time.Time{})
	s.readings.visit = h.visits.Add(1)
	defer func() {
		s.readings.visit = 0
		h.booker.giveBack(s)
	}()
	ln.planned = make(map[replica.Slot]float64, 16)
	soonest, room := maxWake.Seconds(), h.booker.room()
	ln.hold.Visit(now, mostVisited, func(t *holdqueue.Ticket) holdqueue.Verdict {
		verdict := h.offer(s, t.Owner.(*waiter), now)
		if verdict != holdqueue.Keep {
			return verdict
		}
		open := false
		for i := range s.d.Candidates {
			o := &s.d.Candidates[i]
			if !works(o) {
				continue
			}
			if over := o.Backlog - room.enough(o); over >= 0 {
				soonest = min(soonest, over)
			} else if o.Backlog+ln.planned[o.Slot] < room.enough(o) {
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
		at := h.clock.Since(now) + int64(max(minWake, clock.Duration(soonest)))
		ln.wakeAt.Store(at)
		h.alarm.ringBefore(at) // Run may have gone to sleep before this request waited
	}
}

// offer decides about a waiting request. The index's answer about its prompt may be a moment old while
// it waits; the index is asked again before it is released.
func (h *holding) offer(s *evaluation, w *waiter, now time.Time) holdqueue.Verdict {
	ln, b, m := w.line, h.booker, &s.matching
	m.known, s.since = nil, w.arrived
	s.program.resume(w.call, w.full)
	if now.Sub(w.matched) < matchLife {
		m.known = w.overlaps
	}
	stale, room := m.known != nil, b.room()
	for {
		if err := b.evaluate(s, w.req, ln.remembered, now, ln.planned); err != nil {
			w.end(nil, err)
			return holdqueue.Drop
		}
		s.avoidFull()
		s.choose()
		if s.d.Chosen < 0 {
			choice, err := b.commit(s, w.req, ln.remembered, now, w.waited())
			w.end(choice, err)
			return holdqueue.Drop
		}
		if err := b.reach(&s.d, w.req); err != nil {
			w.end(nil, err)
			return holdqueue.Drop
		}
		if !stale {
			w.overlaps, w.matched = append(w.overlaps[:0], m.overlaps...), now
		}
		if !room.has(s.computes()) || !stale {
			break
		}
		stale, m.known = false, nil
	}
	m.known = nil
	cand := s.computes()
	w.ticket.Work, w.ticket.Cost = cand.Prefill, cost(&s.d)
	if !room.has(cand) || room > 0 && !s.whole && w.yields.to(cand, now) { // holdAbove may be turned off while some wait
		ln.planned[cand.Slot] += cand.Prefill * (1 + cand.Slowdown)
		return holdqueue.Keep
	}
	choice, err := b.commit(s, w.req, ln.remembered, now, w.waited())
	w.end(choice, err)
	if err != nil {
		return holdqueue.Drop
	}
	return holdqueue.Release
}

// cost is a tenant's charge for the pick, in seconds of its engine: the prefill, and of each step of the
// answer its part among the sequences that share it.
func cost(d *decision.Decision) float64 {
	cand := d.Pick()
	return cand.Prefill + float64(answers.Counted(d.ExpectedOutput))*cand.StepTime/float64(cand.Requests+1)
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
