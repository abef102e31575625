package evaluate

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// candidates lists the ranks with their vetoes.
func (e *Evaluator) candidates(s *Evaluation, req *ask.Request, of *Model) {
	o := &req.Options
	f := selector.Filter{
		Model: req.Served, Excluded: req.Exclude, Denied: o.Denied, Allowed: o.Allowed,
		Pinned: o.Pinned, PinnedRank: o.PinnedRank, MinRank: o.MinRank, MaxRank: o.MaxRank,
	}
	if f.Model == "" {
		f.Model = req.Model
	}
	p := of.pools.Of(req.Replicas, e.Lanes)
	f.Mute = p.Mute && layout.MostMute(req.Replicas, s.Decision.At)
	if req.Holder != "" {
		f.Pinned, f.PinnedRank, f.Draining = req.Holder, -1, true
	}
	f.PromptTokens = req.Longest
	var rules *layout.Rules
	if f.Plain() {
		rules = p.RulesFor(&f)
	}
	barred := e.bar(s, &f, req, p, rules)
	s.Pool, s.Matching.sizes = p, s.Matching.sizes[:0]
	s.Decision.Candidates, s.ranks = sized(s.Decision.Candidates, len(p.Ranks)), sized(s.ranks, len(p.Ranks))
	table, cands := e.Ranks.BySlot(), s.Decision.Candidates
	var veto decision.Veto
	owner, size := int32(-1), uint32(0)
	for i := range p.Ranks {
		at, cand := &p.Ranks[i], &cands[i]
		if at.Owner != owner {
			owner = at.Owner
			if veto = p.Veto(&f, rules, int(owner)); veto == decision.VetoNone && len(barred) > 0 && slices.Contains(barred, at.Replica) {
				veto = decision.VetoExcluded
			}
		}
		state, known := e.Index.Rank(at.Slot)
		*cand = decision.Candidate{} // cleared in place: a literal with these fields would be built elsewhere and copied
		cand.Replica, cand.Slot, cand.Rank, cand.Feed, cand.Veto, cand.Blocks = at.Replica, at.Slot, at.Index, state, veto, at.Blocks
		if cand.BlockSize = uint32(known); known == 0 {
			cand.BlockSize = at.BlockSize
		}
		if veto == decision.VetoNone {
			if cand.Veto = f.Rank(int(at.Index)); !f.Draining && at.Drained {
				cand.Veto = decision.VetoDraining
			}
		}
		if cand.BlockSize != size {
			if size = cand.BlockSize; !slices.Contains(s.Matching.sizes, int(size)) {
				s.Matching.sizes = append(s.Matching.sizes, int(size))
			}
		}
		s.ranks[i] = nil
		if int(at.Slot) < len(table) {
			s.ranks[i] = table[at.Slot]
		}
	}
	e.tooLong(s, req, f.Model)
}

// tooLong allows the replicas with the longest context when no context holds the prompt: the engine's
// error is one that the caller can act on, while "no replica" would invite a retry. A replica that
// could hold the prompt and only cannot take it now keeps its veto: a retry may find it.
func (e *Evaluator) tooLong(s *Evaluation, req *ask.Request, model string) {
	d := &s.Decision
	longest := 0
	for i := range d.Candidates {
		switch d.Candidates[i].Veto {
		case decision.VetoNone:
			return
		case decision.VetoState, decision.VetoDraining, decision.VetoExcluded:
			if context := layout.ContextOf(s.Owner(i), model); context == 0 || context >= req.Longest {
				return
			}
		case decision.VetoContext:
			longest = max(longest, layout.ContextOf(s.Owner(i), model))
		default: // the caller's option, which no retry changes
		}
	}
	if longest == 0 {
		return
	}
	for i := range d.Candidates {
		if cand := &d.Candidates[i]; cand.Veto == decision.VetoContext && layout.ContextOf(s.Owner(i), model) == longest {
			cand.Veto = decision.VetoNone
		}
	}
	d.TooLong, s.Held = true, false
}
