package chooser

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// admission has programs without a place wait while no rank has memory for them. The state of the wait is in the lines' gates.
type admission struct {
	holding  *holding
	booker   *booker
	clock    *clock
	settings *current
	sessions *sessions
	alarm    *alarm
	log      *slog.Logger
	counts   *waitCounts
	// unreachable counts the requests whose targets cannot be kept.
	unreachable *atomic.Int64
}

// arrive notes the call of a session in the ledger, and names it in s.
func (a *admission) arrive(s *evaluation, req *Request, ln *line, now time.Time) {
	s.program.call = programs.Call{}
	if !s.held || a.settings.horizon() == 0 || len(s.d.Candidates) == 0 {
		return
	}
	cand := &s.d.Candidates[0]
	call := ln.claims.call(a.sessions, req, req.hashesFor(cand), int(cand.BlockSize))
	if call.Name == 0 {
		return
	}
	call.Tokens += outputs(s.d.ExpectedOutput)
	call.Program = ln.claims.ledger.Arrive(call, time.Duration(a.clock.since(now)), a.settings.horizon())
	s.program.call = call
}

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
	switch ln.claims.ledger.Admit(p.call, !visiting && ln.memory.hold.Len() > 0, p.ranks, time.Duration(a.clock.since(now))) {
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
