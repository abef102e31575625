package chooser

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// place books the program's memory on the chosen rank; nil for a call that the ledger does not count.
func (g *memoryGate) place(of *callForMemory, cand *decision.Candidate, now int64) *programs.Place {
	if of.call.Name == 0 {
		return nil
	}
	return g.ledger.Place(of.call, rankOf(cand), time.Duration(now))
}

// horizon is the time within which a program returns; 0 when no session is one.
func (c *current) horizon() time.Duration { return c.Load().config.ProgramHorizon }

// callForMemory is a request's call in the ledger of programs: ranks are the ranks that may serve it, full the ranks among them without
// memory for it.
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
	// waits counts the requests that waited, unreachable the requests whose targets cannot be kept.
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
		// A subagent's name is its agent's, a slash, and its own (openai.SessionFrom).
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

// prompts marks the class of a tenant's calls without a session: they differ from calls with one.
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

// choose picks a candidate, and another one to prefill for it where that costs less. When no other one is left, ranks without memory for
// the program serve, and then ranks that prefill for others.
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
