package waiting

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

const (
	// memoryEach is how often the calls that wait for memory are visited when nothing happens: claims fade with time. memorySoon is
	// the least time between two visits.
	memoryEach, memorySoon = 100 * time.Millisecond, 20 * time.Millisecond
	// mostLooked bounds the programs that one visit looks at.
	mostLooked = 16
	// passable is how long programs may pass one that does not fit. After that none begins before it.
	passable = time.Minute
)

// waitForMemory puts a request in line at the gate. Its wait is bounded like that in the hold queue.
func (a *admission) waitForMemory(s *evaluate.Evaluation, w *Waiter, deadline, now time.Time) error {
	ln, req := w.line, w.req
	before := ln.memory.hold.Len()
	w.memory, w.call = newMemoryWait(&s.Program, before, ln.memory.pace.expected(before)), s.Program.Call
	w.memory.begun = ln.Claims.Ledger.Begun(w.call.Name)
	w.arrived = now.Add(-req.Age)
	wait := w.memory.first // from Push on, the wait may move
	if target := req.Options.Targets.TTFT; target > 0 && float64(req.Age+wait.Expected) > (1+evaluate.LeastLate)*float64(target) {
		a.unreachable.Add(1)
		return &ask.Refused{Cause: ask.CauseTarget, RetryAfter: ln.memory.pace.retry(before), Memory: &wait}
	}
	w.ticket = &holdqueue.Ticket{
		Tenant: req.Tenant, Priority: req.Priority, Age: req.Age, Bytes: req.Bytes, Deadline: deadline, Cost: cost(&s.Decision), Owner: w,
		First: ln.Claims.Ledger.Awaited(w.call.Name), Seniority: w.memory.seniority(),
	}
	if again, err := ln.memory.hold.Push(w.ticket, now, len(s.Program.Ranks), max(memoryEach, wait.Expected)); err != nil {
		return &ask.Refused{Cause: holdqueue.Cause(err), RetryAfter: max(again, time.Second), Memory: &wait}
	}
	ln.memory.pace.begin(a.clock.Since(now))
	a.counts.Memory.Add(1)
	a.log.Debug("a program waits for memory", "wait", wait, "id", req.ID, "tenant", req.Tenant, "model", req.Model)
	soon := memoryEach
	if w.memory.begun > 0 {
		soon = memorySoon // it may fit where the new programs before it do not begin
	}
	a.wakeForMemory(ln, a.clock.Since(now)+int64(soon))
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
	if soon := g.visited.Load() + int64(memorySoon); a.clock.Since(a.clock.Now()) < soon {
		a.wakeForMemory(ln, soon)
		return
	}
	a.visitMemory(ln)
}

// visitMemory admits the calls at the gate that fit, in their order. One that does not fit is passed by later calls for a while;
// then it ends the visit, so that no large program starves. New programs pass one of their tenant that has begun only where much is free.
func (a *admission) visitMemory(ln *line) {
	g := ln.memory
	if !g.visiting.TryLock() {
		a.wakeForMemory(ln, a.clock.Since(a.clock.Now())+int64(memorySoon))
		return
	}
	defer g.visiting.Unlock()
	now := a.clock.Now()
	g.wakeAt.Store(0)
	g.visited.Store(a.clock.Since(now))
	for _, t := range g.hold.Expired(now) {
		if w := t.Owner.(*Waiter); w.memory.expire(now.Sub(t.Arrived())) {
			cause := holdqueue.Cause(t.Why())
			if cause == "timeout" {
				cause = ask.CauseMemory
			}
			w.end(nil, &ask.Refused{Cause: cause, RetryAfter: g.pace.retry(g.hold.Len()), Memory: &w.memory.first})
		}
	}
	var admitted []*Waiter
	var passed passing
	s := a.booker.Borrow(time.Time{})
	g.hold.Visit(now, mostLooked, func(t *holdqueue.Ticket) holdqueue.Verdict {
		w := t.Owner.(*Waiter)
		w.call.Passes = passed.over(t, w.memory)
		s.Since, s.Program.Call = t.Arrived(), w.call
		w.renew(a.holding.pools)
		if err := a.booker.Evaluate(s, w.req, ln.Model, now, nil); err == nil && !a.admit(s, ln, now, true) {
			passed.note(t, w.memory)
			if now.Sub(t.Arrived()) < passable {
				return holdqueue.Keep
			}
			return holdqueue.Stop
		}
		w.full = slices.Clone(s.Program.Full)
		admitted = append(admitted, w)
		return holdqueue.Release
	})
	a.booker.GiveBack(s)
	g.pace.admitted(len(admitted), g.hold.Len(), a.clock.Since(now))
	for _, w := range admitted {
		a.move(w, now)
	}
	if g.hold.Len() > 0 {
		a.wakeForMemory(ln, a.clock.Since(now)+int64(memoryEach))
	}
}

// enter books an admitted call, or puts it in the hold queue: then it returns true.
func (a *admission) enter(s *evaluate.Evaluation, w *Waiter, deadline, now time.Time) (*booking.Choice, bool, error) {
	s.AvoidFull()
	s.Choose()
	if err := a.booker.Reach(&s.Decision, w.req); err != nil {
		return nil, false, err
	}
	choice, err := a.holding.bookNow(s, w.req, w.line, now, w)
	if !errors.Is(err, booking.ErrNoRoom) {
		return choice, false, err
	}
	// The wait for memory is no seniority among the requests that wait for a rank: a paused program may have to compute its whole context there.
	err = a.holding.wait(s, w, deadline, 0, now)
	return nil, err == nil, err
}

// move takes an admitted call from the gate to a rank, or to the hold queue.
func (a *admission) move(w *Waiter, now time.Time) {
	m := w.memory
	m.mu.Lock()
	if m.gone {
		m.mu.Unlock()
		return
	}
	m.first.Waited = now.Sub(w.arrived)
	s := a.booker.Borrow(w.arrived)
	s.Program.Resume(w.call, w.full)
	var choice *booking.Choice
	var held bool
	err := a.booker.Evaluate(s, w.req, w.line.Model, now, nil)
	if err == nil {
		choice, held, err = a.enter(s, w, w.ticket.Deadline, now)
	}
	a.booker.GiveBack(s)
	m.moved = true
	m.mu.Unlock()
	if held {
		a.holding.offerRoom(w.line)
		return
	}
	w.end(choice, err)
}

// admission has programs without a place wait while no rank has memory for them. The state of the wait is in the lines' gates.
type admission struct {
	holding  *holding
	booker   *booking.Booker
	clock    *clock.Clock
	settings *settings.Current
	sessions *past.Sessions
	alarm    *alarm
	log      *slog.Logger
	counts   *Counts
	// unreachable counts the requests whose targets cannot be kept.
	unreachable *atomic.Int64
}

// arrive notes the call of a session in the ledger, and names it in s.
func (a *admission) arrive(s *evaluate.Evaluation, req *ask.Request, ln *line, now time.Time) {
	s.Program.Call = programs.Call{}
	if !s.Held || a.settings.Horizon() == 0 || len(s.Decision.Candidates) == 0 {
		return
	}
	cand := &s.Decision.Candidates[0]
	call := ln.Claims.Call(a.sessions, req, req.HashesFor(cand), int(cand.BlockSize))
	if call.Name == 0 {
		return
	}
	call.Tokens += answers.Counted(s.Decision.ExpectedOutput)
	call.Program = ln.Claims.Ledger.Arrive(call, time.Duration(a.clock.Since(now)), a.settings.Horizon())
	s.Program.Call = call
}

// admit reports whether the request's program has a place, or gets one now. Then s.program.full names the ranks without memory for it.
func (a *admission) admit(s *evaluate.Evaluation, ln *line, now time.Time, visiting bool) bool {
	p := &s.Program
	p.Full = p.Full[:0]
	if !p.Call.Program {
		return true
	}
	p.Ranks = p.Ranks[:0]
	for i := range s.Decision.Candidates {
		if cand := &s.Decision.Candidates[i]; cand.Veto == decision.VetoNone {
			p.Ranks = append(p.Ranks, claims.RankOf(cand))
		}
	}
	if len(p.Ranks) == 0 {
		return true // no rank can serve it: it must not wait for memory
	}
	switch ln.Claims.Ledger.Admit(p.Call, !visiting && ln.memory.hold.Len() > 0, p.Ranks, time.Duration(a.clock.Since(now))) {
	case programs.Waits:
		return false
	case programs.Fits:
		for i := range p.Ranks {
			if p.Ranks[i].Full {
				p.Full = append(p.Full, p.Ranks[i].Slot)
			}
		}
	case programs.Free:
	}
	return true
}
