package chooser

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// memoryGate holds the calls of programs without a place while no rank has memory for them. It stands before the hold queue.
type memoryGate struct {
	ledger *programs.Ledger
	chains *programs.Chains
	hold   *holdqueue.Line // first come, first served within a tenant
	pace   memoryPace

	visiting sync.Mutex
	visited  atomic.Int64 // when the last visit was, on the chooser's scale
	wakeAt   atomic.Int64 // when the next one is due; 0: never
}

func newMemoryGate(queue *holdqueue.Queue) *memoryGate {
	return &memoryGate{ledger: programs.New(), chains: programs.NewChains(), hold: queue.NewLine()}
}

const (
	// memoryEach is how often the calls that wait for memory are visited when nothing happens: claims fade with time. memorySoon is
	// the least time between two visits.
	memoryEach, memorySoon = 100 * time.Millisecond, 20 * time.Millisecond
	// causeMemory is the Refused.Cause of a call that waited for memory too long, memoryRetry the hint for its retry: programs last minutes.
	causeMemory, memoryRetry = "memory", 30 * time.Second
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

// leave ends a call that the ledger counts and that is not placed.
func (g *memoryGate) leave(call *programs.Call) {
	if call.Name != 0 {
		g.ledger.Leave(call.Name)
	}
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

// place books the program's memory on the chosen rank; nil for a call that the ledger does not count.
func (g *memoryGate) place(of *callForMemory, cand *decision.Candidate, now int64) *programs.Place {
	if of.call.Name == 0 {
		return nil
	}
	return g.ledger.Place(of.call, rankOf(cand), time.Duration(now))
}

// horizon is the time within which a program returns; 0 when no session is one.
func (c *current) horizon() time.Duration { return c.Load().config.ProgramHorizon }

// callForMemory is a request's call in the ledger of programs: ranks are those that may serve it, full those of them without memory for it.
type callForMemory struct {
	call  programs.Call
	ranks []programs.Rank
	full  []replica.Slot
}

// resume sets the call to one that has waited.
func (p *callForMemory) resume(w *waiter) {
	p.call, p.full = w.call, append(p.full[:0], w.full...)
}

// admission has programs without a place wait while no rank has memory for them. The state of the wait is in the lines' gates.
type admission struct {
	holding  *holding
	booker   *booker
	clock    *clock
	settings *current
	sessions *sessions
	alarm    *alarm
	log      *slog.Logger
	// waits counts the requests that waited, unreachable those whose targets cannot be kept.
	waits, unreachable *atomic.Int64
}

// arrive notes the call of a session in the ledger, and names it in s.
func (a *admission) arrive(s *evaluation, req *Request, ln *line, now time.Time) {
	s.program.call = programs.Call{}
	if !s.held || a.settings.horizon() == 0 || len(s.d.Candidates) == 0 {
		return
	}
	cand := &s.d.Candidates[0]
	call := a.sessions.call(ln, req, req.hashesFor(cand), int(cand.BlockSize))
	if call.Name == 0 {
		return
	}
	call.Tokens += outputs(s.d.ExpectedOutput)
	call.Program = ln.memory.ledger.Arrive(call, time.Duration(a.clock.since(now)), a.settings.horizon())
	s.program.call = call
}

// call is a request's call in the ledger: of its session, or else of the program that its prompt continues. A Name of 0 is none.
func (s *sessions) call(ln *line, req *Request, hashes []blockhash.Hash, blockSize int) programs.Call {
	call := programs.Call{Class: req.Tenant, Tenant: req.Tenant, Tokens: req.PromptTokens, Prompt: req.PromptTokens, Retry: req.Attempt > 0}
	if at := headTokens/max(1, blockSize) - 1; !req.Keyless && at < len(hashes) && len(hashes) > 0 {
		call.Head = uint64(hashes[max(0, at)])
	}
	name := func(session string) programs.Name { return programs.Name(max(1, s.key(ln, req.Tenant, session).name)) }
	switch {
	case req.Session != "":
		call.Name = name(req.Session)
		// A subagent's name is that of its agent, a slash, and its own (openai.SessionFrom).
		if i := strings.LastIndexByte(req.Session, '/'); i > 0 {
			call.Parent = name(req.Session[:i])
		}
	case !req.Keyless && len(hashes) > 0:
		found := ln.memory.chains.Find(uint64(name("")), hashes, req.PromptTokens, call.Retry)
		call.Name, call.Parent = found.Name, found.Parent
		call.Class += prompts
	}
	return call
}

// headTokens is the length of the beginning by which prompts of one application are alike. Templates begin all prompts of a model alike.
const headTokens = 256

// prompts marks the class of a tenant's calls without a session: they are not alike to those with one.
const prompts = "\x00prompts"

// admit reports whether the request's program has a place, or gets one now. Then s.program.full names the ranks without memory for it.
func (a *admission) admit(s *evaluation, ln *line, now time.Time, visiting bool) bool {
	p := &s.program
	p.full = p.full[:0]
	if !p.call.Program {
		return true
	}
	p.ranks = p.ranks[:0]
	for i := range s.d.Candidates {
		if cand := &s.d.Candidates[i]; cand.Veto == decision.VetoNone {
			p.ranks = append(p.ranks, rankOf(cand))
		}
	}
	if len(p.ranks) == 0 {
		return true // no rank can serve it: it must not wait for memory
	}
	g := ln.memory
	switch g.ledger.Admit(p.call, !visiting && g.hold.Len() > 0, p.ranks, time.Duration(a.clock.since(now))) {
	case programs.Waits:
		return false
	case programs.Fits:
		for i := range p.ranks {
			if p.ranks[i].Full {
				p.full = append(p.full, p.ranks[i].Slot)
			}
		}
	case programs.Free:
	}
	return true
}

// rankOf is the memory of a candidate.
func rankOf(cand *decision.Candidate) programs.Rank {
	size := float64(cand.BlockSize)
	return programs.Rank{Slot: cand.Slot, Capacity: size * float64(cand.Blocks), Booked: size * cand.DecodeBlocks, Held: float64(cand.GPU), Bend: cand.Bend}
}

// avoidFull vetoes the ranks without memory for the program, unless no other one is left.
func (s *evaluation) avoidFull() {
	if len(s.program.full) == 0 {
		return
	}
	others := false
	for i := range s.d.Candidates {
		cand := &s.d.Candidates[i]
		others = others || cand.Veto == decision.VetoNone && !slices.Contains(s.program.full, cand.Slot)
	}
	for i := range s.d.Candidates {
		if cand := &s.d.Candidates[i]; others && cand.Veto == decision.VetoNone && slices.Contains(s.program.full, cand.Slot) {
			cand.Veto = decision.VetoMemory
		}
	}
}

// choose picks a candidate, and another one to prefill for it where that costs less. When no other one is left, those without memory for
// the program serve, and then those that prefill for others.
func (s *evaluation) choose() {
	s.spare(false)
	s.pick()
	if s.d.Chosen < 0 && s.pool.pairs != nil {
		s.spare(true)
		s.pick()
		return
	}
	s.split()
}

// pick picks a candidate to serve the request whole.
func (s *evaluation) pick() {
	selector.Choose(&s.d)
	if s.d.Chosen >= 0 || len(s.program.full) == 0 {
		return
	}
	for i := range s.d.Candidates {
		if cand := &s.d.Candidates[i]; cand.Veto == decision.VetoMemory {
			cand.Veto = decision.VetoNone
		}
	}
	selector.Choose(&s.d)
}

// programCall is a choice's call in the ledger of programs. It is an Observer.
type programCall struct {
	endOnly
	place     *programs.Place
	returns   time.Duration // the request's SessionReturn
	prompt    int           // tokens
	evaluator *evaluator
}

// Ended implements Observer.
func (p *programCall) Ended(end *End) {
	p.place.End(p.prompt+end.Output, p.returns < 0, p.returns > p.evaluator.settings.horizon(), time.Duration(p.evaluator.clock.since(end.At)))
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
		First: ln.memory.ledger.Awaited(w.call.Name),
	}
	if again, err := ln.memory.hold.Push(w.ticket, now, len(s.program.ranks), max(memoryEach, wait.Expected)); err != nil {
		return &Refused{Cause: holdqueue.Cause(err), RetryAfter: max(again, time.Second), Memory: &wait}
	}
	ln.memory.pace.begin(a.clock.since(now))
	a.waits.Add(1)
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

// visitMemory admits the calls at the gate that fit, in their order: children first. One that does not fit is passed by those behind it for
// a while; then it ends the visit, so that no large program starves.
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
		if err := a.booker.evaluate(s, w.req, ln, now, nil); err == nil && !a.admit(s, ln, now, true) {
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
	// The wait for memory is no seniority among those that wait for a rank: a paused program may have to compute its whole context there.
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
	s.program.resume(w)
	var choice *Choice
	var held bool
	err := a.booker.evaluate(s, w.req, w.line, now, nil)
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
