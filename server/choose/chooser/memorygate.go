package chooser

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// memoryGate holds the calls of programs without a place while no rank has memory for them. It stands before the hold queue.
type memoryGate struct {
	hold *holdqueue.Line // first come, first served within a tenant
	pace memoryPace

	visiting sync.Mutex
	visited  atomic.Int64 // when the last visit was, on the chooser's scale
	wakeAt   atomic.Int64 // when the next one is due; 0: never
}

func newMemoryGate(queue *holdqueue.Queue) *memoryGate {
	return &memoryGate{hold: queue.NewLine()}
}

const (
	// memoryEach is how often the calls that wait for memory are visited when nothing happens: claims fade with time. memorySoon is
	// the least time between two visits.
	memoryEach, memorySoon = 100 * time.Millisecond, 20 * time.Millisecond
	// memoryRetry is the hint for the retry of a call that waited for memory too long: programs last minutes.
	memoryRetry = 30 * time.Second
	// mostLooked bounds the programs that one visit looks at.
	mostLooked = 16
	// passable is how long programs may pass one that does not fit. After that none begins before it.
	passable = 5 * time.Minute
)

// memoryWait is a call's wait at the gate.
type memoryWait struct {
	mu sync.Mutex
	// first is the wait as it was expected when it began. Its Waited is set when it has moved.
	first decision.MemoryWait
	// moved is set when it has left the gate for the hold queue or its outcome, gone when its caller left before; guarded by mu.
	moved, gone bool
}

// leaveMemory is leave for a request that waits for memory, or has waited.
func (w *waiter) leaveMemory() bool {
	m := w.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.moved {
		return w.line.hold.Remove(w.ticket)
	}
	if m.gone {
		return false
	}
	w.line.memory.hold.Remove(w.ticket)
	m.gone = true
	return true
}

// expire ends the wait after so long; false when the caller left.
func (m *memoryWait) expire(waited time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moved = true
	if m.gone {
		return false
	}
	m.first.Waited = waited
	return true
}

// wait is the wait as a decision shows it, after it has moved; nil for a request that did not wait for memory.
func (m *memoryWait) wait() *decision.MemoryWait {
	if m == nil {
		return nil
	}
	w := m.first
	return &w
}

// newMemoryWait is the wait of the program of p behind others, which is expected to take so long.
func (p *callForMemory) newMemoryWait(before int, expected time.Duration) *memoryWait {
	free := 0.0
	for i := range p.ranks {
		free = max(free, p.ranks[i].Free)
	}
	return &memoryWait{first: decision.MemoryWait{Program: uint64(p.call.Name), Tokens: p.call.Tokens, Free: int(free), Before: before, Expected: expected}}
}

// waitForMemory puts a request in line at the gate. Its wait is bounded like that in the hold queue.
func (a *admission) waitForMemory(s *evaluation, w *waiter, deadline, now time.Time) error {
	ln, req := w.line, w.req
	before := ln.memory.hold.Len()
	w.memory, w.call = s.program.newMemoryWait(before, ln.memory.pace.expected(before)), s.program.call
	w.arrived = now.Add(-req.Age)
	wait := w.memory.first // from Push on, the wait may move
	if target := req.Options.Targets.TTFT; target > 0 && float64(req.Age+wait.Expected) > (1+leastLate)*float64(target) {
		a.unreachable.Add(1)
		return &Refused{Cause: causeTarget, RetryAfter: ln.memory.pace.retry(before), Memory: &wait}
	}
	w.ticket = &holdqueue.Ticket{
		Tenant: req.Tenant, Priority: req.Priority, Age: req.Age, Bytes: req.Bytes, Deadline: deadline, Cost: cost(&s.d), Owner: w,
		First: ln.claims.ledger.Awaited(w.call.Name),
	}
	if again, err := ln.memory.hold.Push(w.ticket, now, len(s.program.ranks), max(memoryEach, wait.Expected)); err != nil {
		return &Refused{Cause: holdqueue.Cause(err), RetryAfter: max(again, time.Second), Memory: &wait}
	}
	ln.memory.pace.begin(a.clock.since(now))
	a.counts.memory.Add(1)
	a.log.Debug("a program waits for memory", "wait", wait, "id", req.ID, "tenant", req.Tenant, "model", req.Model)
	a.wakeForMemory(ln, a.clock.since(now)+int64(memoryEach))
	return nil
}

// wakeForMemory has the gate visited at a moment of the chooser's scale, or before.
func (a *admission) wakeForMemory(ln *line, at int64) {
	for {
		old := ln.memory.wakeAt.Load()
		if old != 0 && old <= at {
			return
		}
		if ln.memory.wakeAt.CompareAndSwap(old, at) {
			break
		}
	}
	a.alarm.ringBefore(at)
}

// freed notes that a request has ended: the gate is visited now, or soon when it has just been.
func (a *admission) freed(ln *line) {
	g := ln.memory
	if g.hold.Len() == 0 {
		return
	}
	if soon := g.visited.Load() + int64(memorySoon); a.clock.since(a.clock.now()) < soon {
		a.wakeForMemory(ln, soon)
		return
	}
	a.visitMemory(ln)
}

// visitMemory admits the calls at the gate that fit, in their order: children first. One that does not fit is passed by later calls for a while;
// then it ends the visit, so that no large program starves.
func (a *admission) visitMemory(ln *line) {
	g := ln.memory
	if !g.visiting.TryLock() {
		a.wakeForMemory(ln, a.clock.since(a.clock.now())+int64(memorySoon))
		return
	}
	defer g.visiting.Unlock()
	now := a.clock.now()
	g.wakeAt.Store(0)
	g.visited.Store(a.clock.since(now))
	for _, t := range g.hold.Expired(now) {
		if w := t.Owner.(*waiter); w.memory.expire(now.Sub(t.Arrived())) {
			cause := holdqueue.Cause(t.Why())
			if cause == "timeout" {
				cause = causeMemory
			}
			w.end(nil, &Refused{Cause: cause, RetryAfter: g.pace.retry(g.hold.Len()), Memory: &w.memory.first})
		}
	}
	var admitted []*waiter
	s := a.booker.borrow(time.Time{})
	g.hold.Visit(now, mostLooked, func(t *holdqueue.Ticket) holdqueue.Verdict {
		w := t.Owner.(*waiter)
		s.since, s.program.call = t.Arrived(), w.call
		if err := a.booker.evaluate(s, w.req, ln.remembered, now, nil); err == nil && !a.admit(s, ln, now, true) {
			if now.Sub(t.Arrived()) < passable {
				return holdqueue.Keep
			}
			return holdqueue.Stop
		}
		w.full = slices.Clone(s.program.full)
		admitted = append(admitted, w)
		return holdqueue.Release
	})
	a.booker.giveBack(s)
	g.pace.admitted(len(admitted), g.hold.Len(), a.clock.since(now))
	for _, w := range admitted {
		a.move(w, now)
	}
	if g.hold.Len() > 0 {
		a.wakeForMemory(ln, a.clock.since(now)+int64(memoryEach))
	}
}

// enter books an admitted call, or puts it in the hold queue: then it returns true.
func (a *admission) enter(s *evaluation, w *waiter, deadline, now time.Time) (*Choice, bool, error) {
	s.avoidFull()
	s.choose()
	if err := a.booker.reach(&s.d, w.req); err != nil {
		return nil, false, err
	}
	choice, err := a.holding.bookNow(s, w.req, w.line, now, w)
	if !errors.Is(err, errNoRoom) {
		return choice, false, err
	}
	// The wait for memory is no seniority among the requests that wait for a rank: a paused program may have to compute its whole context there.
	err = a.holding.wait(s, w, deadline, 0, now)
	return nil, err == nil, err
}

// move takes an admitted call from the gate to a rank, or to the hold queue.
func (a *admission) move(w *waiter, now time.Time) {
	m := w.memory
	m.mu.Lock()
	if m.gone {
		m.mu.Unlock()
		return
	}
	m.first.Waited = now.Sub(w.arrived)
	s := a.booker.borrow(w.arrived)
	s.program.resume(w.call, w.full)
	var choice *Choice
	var held bool
	err := a.booker.evaluate(s, w.req, w.line.remembered, now, nil)
	if err == nil {
		choice, held, err = a.enter(s, w, w.ticket.Deadline, now)
	}
	a.booker.giveBack(s)
	m.moved = true
	m.mu.Unlock()
	if held {
		a.holding.offerRoom(w.line)
		return
	}
	w.end(choice, err)
}
