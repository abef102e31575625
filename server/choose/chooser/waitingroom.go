package chooser

import (
	"errors"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// waitingRoom has the requests that wait: for memory, then for room on a rank.
type waitingRoom struct {
	holding   *holding
	admission *admission
	lines     *lines
	queue     *holdqueue.Queue
	clock     *clock.Clock
	alarm     *alarm
}

// place decides about a request that was evaluated, or puts it in line.
func (r *waitingRoom) place(s *evaluate.Evaluation, req *ask.Request, ln *line, deadline, now time.Time, deliver func(*booking.Choice, error)) (*booking.Choice, *waiter, error) {
	waits := !r.admission.admit(s, ln, now, false)
	s.AvoidFull()
	s.Choose()
	if err := r.holding.booker.Reach(&s.Decision, req); err != nil {
		return nil, nil, err
	}
	if !waits {
		if choice, err := r.holding.bookNow(s, req, ln, now, nil); !errors.Is(err, booking.ErrNoRoom) {
			return choice, nil, err
		}
	}
	w := &waiter{req: req, line: ln, deliver: deliver, call: s.Program.Call, full: slices.Clone(s.Program.Full)}
	if deliver == nil {
		w.answer = make(chan answer, 1)
	}
	if waits {
		if err := r.admission.waitForMemory(s, w, deadline, now); err != nil {
			return nil, nil, err
		}
		return nil, w, nil
	}
	if err := r.holding.wait(s, w, deadline, req.Age, now); err != nil {
		return nil, nil, err
	}
	r.holding.offerRoom(ln)
	return nil, w, nil
}

// Changed has the requests that wait visited again, if there are any.
func (r *waitingRoom) Changed() { r.alarm.Changed() }

// Freed implements follow.Waiting: the requests that wait for the rank at slot are looked at now, others soon.
func (r *waitingRoom) Freed(slot replica.Slot) {
	if r.queue.Len() == 0 {
		return
	}
	for _, ln := range r.lines.all() {
		r.admission.freed(ln)
		r.holding.freed(ln, slot)
	}
}

// Waiting is the number of requests that wait.
func (r *waitingRoom) Waiting() int { return r.queue.Len() }

// WaitingFor is the number of requests for a model that wait.
func (r *waitingRoom) WaitingFor(model string) int {
	ln, ok := r.lines.byModel.Load(model)
	if !ok {
		return 0
	}
	return ln.(*line).hold.Len() + ln.(*line).memory.hold.Len()
}

// Tick visits the lines that are due and returns when to call it next; false when no request waits. Run calls it; a player of traces
// calls it in virtual time.
func (r *waitingRoom) Tick() (next time.Time, ok bool) {
	if r.queue.Len() == 0 {
		return time.Time{}, false
	}
	now := r.clock.Since(r.clock.Now())
	for _, ln := range r.lines.all() {
		if at := ln.memory.wakeAt.Load(); ln.memory.hold.Len() > 0 && at <= now {
			r.admission.visitMemory(ln)
		}
		if ln.hold.Len() == 0 {
			continue
		}
		if at := ln.wakeAt.Load(); at == 0 || at <= now {
			r.holding.offerRoom(ln)
		}
	}
	return r.NextWake()
}

// NextWake returns when Tick should be called next; false when no request waits.
func (r *waitingRoom) NextWake() (next time.Time, ok bool) {
	if r.queue.Len() == 0 {
		return time.Time{}, false
	}
	var soonest int64
	for _, ln := range r.lines.all() {
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
	return r.clock.Time(soonest), true
}

// sleep is how long Run may sleep: until the next visit, and at most so long. A visit that is planned at the same time, for earlier,
// either is seen here or sees until when Run sleeps.
func (r *waitingRoom) sleep(most time.Duration) time.Duration {
	now := r.clock.Now()
	until := now.Add(most)
	r.alarm.sleepsUntil.Store(r.clock.Since(until))
	if at, ok := r.NextWake(); ok && at.Before(until) {
		until = at
		r.alarm.sleepsUntil.Store(r.clock.Since(until))
	}
	return max(time.Millisecond, until.Sub(now))
}

// drain rejects every request that waits.
func (r *waitingRoom) drain() {
	for _, ln := range r.lines.all() {
		for _, t := range ln.hold.Drain() {
			t.Owner.(*waiter).end(nil, &ask.Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
		}
		now := r.clock.Now()
		for _, t := range ln.memory.hold.Drain() {
			if w := t.Owner.(*waiter); w.memory.expire(now.Sub(t.Arrived())) {
				w.end(nil, &ask.Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second, Memory: &w.memory.first})
			}
		}
	}
}
