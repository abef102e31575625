package waiting

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

// Tick visits the lines that are due and returns when to call it next; false when no request waits. Run calls it; a player of traces
// calls it in virtual time.
func (r *Room) Tick() (next time.Time, ok bool) {
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
func (r *Room) NextWake() (next time.Time, ok bool) {
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

// sleep is how long a pause may last: until the next visit, and at most so long. A visit that is planned at the same time, for earlier,
// either is seen here or sees until when the pause lasts.
func (r *Room) sleep(most time.Duration) time.Duration {
	now := r.clock.Now()
	until := now.Add(most)
	r.alarm.sleepsUntil.Store(r.clock.Since(until))
	if at, ok := r.NextWake(); ok && at.Before(until) {
		until = at
		r.alarm.sleepsUntil.Store(r.clock.Since(until))
	}
	return max(time.Millisecond, until.Sub(now))
}

// Pause waits for the next visit, at most so long; false when ctx has ended.
func (r *Room) Pause(ctx context.Context, timer *time.Timer, most time.Duration) bool {
	timer.Reset(r.sleep(most))
	defer r.alarm.sleepsUntil.Store(0)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-r.alarm.wake:
	}
	return true
}

// Drain rejects every request that waits.
func (r *Room) Drain() {
	for _, ln := range r.lines.all() {
		for _, t := range ln.hold.Drain() {
			t.Owner.(*Waiter).end(nil, &ask.Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second})
		}
		now := r.clock.Now()
		for _, t := range ln.memory.hold.Drain() {
			if w := t.Owner.(*Waiter); w.memory.expire(now.Sub(t.Arrived())) {
				w.end(nil, &ask.Refused{Cause: holdqueue.Cause(t.Why()), RetryAfter: time.Second, Memory: &w.memory.first})
			}
		}
	}
}
