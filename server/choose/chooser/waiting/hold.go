package waiting

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// mostVisited bounds the requests that one visit looks at.
const mostVisited = 128

// holding has requests wait in the hold queue while no suitable rank has room. The state of the wait is in the lines.
type holding struct {
	booker *booking.Booker
	clock  *clock.Clock
	alarm  *alarm
	pools  Pools
	visits atomic.Uint64 // of all lines so far
	counts *Counts
}

// wait puts a request in line.
func (h *holding) wait(s *evaluate.Evaluation, w *Waiter, deadline time.Time, age time.Duration, now time.Time) error {
	req := w.req
	w.ticket = &holdqueue.Ticket{
		Tenant: req.Tenant, Priority: req.Priority, Age: age, Bytes: req.Bytes, Deadline: deadline, Work: s.Computes().Prefill, Cost: cost(&s.Decision), Owner: w,
	}
	if w.arrived.IsZero() {
		w.arrived = now.Add(-age)
	}
	servers, soonest := h.booker.Room().Soonest(&s.Decision)
	if w.stream = !evaluate.Wholly(req, &s.Decision); w.stream {
		w.line.Streams.Add(1)
	}
	if wait, err := w.line.hold.Push(w.ticket, now, servers, soonest); err != nil {
		w.left()
		return &ask.Refused{Cause: holdqueue.Cause(err), RetryAfter: max(wait, time.Second)}
	}
	h.counts.Held.Add(1)
	return nil
}

// bookNow books the pick, or returns errNoRoom when the request must wait.
func (h *holding) bookNow(s *evaluate.Evaluation, req *ask.Request, ln *line, now time.Time, w *Waiter) (*booking.Choice, error) {
	switch {
	case s.Decision.Chosen < 0, !s.Held:
	case s.Asked(), s.Moves():
		return nil, booking.ErrNoRoom
	case ln.hold.Len() > 0, !h.booker.Room().Has(s.Computes()), !s.Calm && new(yielding).to(s.Computes(), now):
		return nil, booking.ErrNoRoom
	}
	return h.booker.Commit(s, req, ln.Model, now, w.waited())
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

// passOn visits the line while the rank at slot gets no request: copies from there begin at once, not after the step that the first
// request would take.
func (h *holding) passOn(ln *line, slot replica.Slot) {
	if !ln.visiting.TryLock() {
		ln.again.Store(true)
		return
	}
	ln.spared = slot
	h.visit(ln)
	ln.spared = replica.NoSlot
	ln.visiting.Unlock()
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
// the rest see the whole line for a hot prefix and spread it when waiting costs more. Where only ranks that may not serve one have room, later
// ones pass, but for programs that have just got their place: most have much to compute.
func (h *holding) visit(ln *line) {
	now := h.clock.Now()
	for _, t := range ln.hold.Expired(now) {
		t.Owner.(*Waiter).end(nil, &ask.Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
	}
	ln.wakeAt.Store(0)
	ln.visited.Store(h.clock.Since(now))
	if ln.hold.Len() == 0 {
		return
	}
	s := h.booker.Borrow(time.Time{})
	s.Readings.Visit = h.visits.Add(1)
	defer func() {
		s.Readings.Visit = 0
		h.booker.GiveBack(s)
	}()
	ln.planned = make(map[replica.Slot]float64, 16)
	ln.sharers.begin()
	soonest, room := maxWake.Seconds(), h.booker.Room()
	narrow := false // a request has no room on the ranks that may serve it, while others have room
	ln.hold.Visit(now, mostVisited, func(t *holdqueue.Ticket) holdqueue.Verdict {
		w := t.Owner.(*Waiter)
		if narrow && w.call.Program {
			return holdqueue.Keep
		}
		verdict := h.offer(s, w, now)
		if verdict != holdqueue.Keep {
			return verdict
		}
		open, own := false, false
		for i := range s.Decision.Candidates {
			o := &s.Decision.Candidates[i]
			works := evaluate.Works(o)
			if !works && !serves(o.Veto) {
				continue
			}
			if over := o.Backlog - room.Enough(o); over >= 0 {
				soonest = min(soonest, over)
			} else if o.Backlog+ln.planned[o.Slot] < room.Enough(o) {
				open, own = true, own || works
			}
		}
		if !open {
			return holdqueue.Stop
		}
		narrow = narrow || !own
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
func (h *holding) offer(s *evaluate.Evaluation, w *Waiter, now time.Time) holdqueue.Verdict {
	ln, b, m := w.line, h.booker, &s.Matching
	m.Known, s.Since = nil, w.arrived
	s.Program.Resume(w.call, w.full)
	w.renew(h.pools)
	if now.Sub(w.matched) < matchLife && h.clock.Since(w.matched) > b.Landed() {
		m.Known = w.overlaps
	}
	stale, room, shared := m.Known != nil, b.Room(), 0
	for {
		if err := b.Evaluate(s, w.req, ln.Model, now, ln.planned); err != nil {
			w.end(nil, err)
			return holdqueue.Drop
		}
		s.AvoidFull()
		if key, ok := s.Prefix(w.req); ok && shared == 0 {
			shared = ln.sharers.count(key)
		}
		s.SetSharers(shared)
		s.Choose()
		if s.Decision.Chosen < 0 {
			choice, err := b.Commit(s, w.req, ln.Model, now, w.waited())
			w.end(choice, err)
			return holdqueue.Drop
		}
		if err := b.Reach(&s.Decision, w.req); err != nil {
			w.end(nil, err)
			return holdqueue.Drop
		}
		if !stale {
			w.overlaps, w.matched = append(w.overlaps[:0], m.Overlaps...), now
		}
		if h.pull(s, w, now) {
			return holdqueue.Keep
		}
		if !room.Has(s.Computes()) || s.Asked() || s.Computes().Slot == ln.spared || !stale {
			break
		}
		stale, m.Known = false, nil
	}
	m.Known = nil
	cand := s.Computes()
	w.ticket.Work, w.ticket.Cost = cand.Prefill, cost(&s.Decision)
	if !room.Has(cand) || s.Asked() || cand.Slot == ln.spared || room > 0 && !s.Calm && w.yields.to(cand, now) { // holdAbove may be turned off while some wait
		ln.planned[cand.Slot] += cand.Prefill * (1 + cand.Slowdown)
		return holdqueue.Keep
	}
	choice, err := b.Commit(s, w.req, ln.Model, now, w.waited())
	w.end(choice, err)
	if err != nil {
		return holdqueue.Drop
	}
	return holdqueue.Release
}

// serves reports whether a rank with this veto may serve requests without the same limits.
func serves(veto decision.Veto) bool {
	switch veto {
	case decision.VetoDenied, decision.VetoNotAllowed, decision.VetoPinned, decision.VetoRank, decision.VetoContext, decision.VetoMemory:
		return true
	default:
		return false
	}
}

// pull has a request wait for a copy of its prompt's beginning, where that costs least; false otherwise.
func (h *holding) pull(s *evaluate.Evaluation, w *Waiter, now time.Time) bool {
	if !s.Pulls || !w.pulls.waits(s, now) {
		return false
	}
	copied, waits := h.booker.StartCopy(s, w.req, now)
	if !waits {
		return false
	}
	to := &s.Decision.Candidates[s.Pull.To]
	if copied != nil {
		w.pulls.copy, w.pulls.way = copied, s.Pull.Way(&s.Decision)
		if at := s.Pool.At(copied.From); at >= 0 {
			w.pulls.way.Prefill = s.Decision.Candidates[at].RankID
		}
	}
	w.ticket.Work, w.ticket.Cost = s.Pull.Prefill, cost(&s.Decision)
	w.line.planned[to.Slot] += s.Pull.Prefill * (1 + to.Slowdown)
	s.Matching.Known = nil
	return true
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
