package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// pairUp prepares the evaluation for the pool's pairs.
func (s *Evaluation) pairUp(req *ask.Request, above *selector.Threshold) {
	p, sp := s.Pool.Pairs, &s.splitting
	sp.able = req.Splittable && s.pairs(req)
	s.Decision.Splittable = sp.able
	if !sp.able && !sp.copying.Able {
		return
	}
	sp.pairing.Members, sp.pairing.Classes, sp.pairing.Above = s.members(p.Members), p.Classes, above
	sp.pairing.Lanes = sized(sp.pairing.Lanes, len(p.Lanes))
	for i, lane := range p.Lanes {
		if lane == nil {
			sp.pairing.Lanes[i] = selector.Lane{Closed: true}
			continue
		}
		m := lane.Model()
		sp.pairing.Lanes[i] = selector.Lane{Start: m.Start, PerToken: m.PerToken}
	}
}

// members are the pool's ranks that can pass cache to each other. A rank whose engine has read too little of its transfers, by its own counts, gets
// none for a while.
func (s *Evaluation) members(all []selector.Member) []selector.Member {
	own := false
	for i, rk := range s.ranks {
		if rk == nil || !all[i].Decodes || !rk.Fetches.Doubted(s.Decision.At) {
			continue
		}
		if !own {
			s.splitting.members, own = append(s.splitting.members[:0], all...), true
			all = s.splitting.members
		}
		all[i].Decodes = false
	}
	return all
}

// pairs reports whether KV cache may move between ranks for the request.
func (s *Evaluation) pairs(req *ask.Request) bool {
	d := &s.Decision
	return s.Pool.Pairs != nil && req.Lease == 0 && !req.Unread && !req.IsPinned() && !d.TooLong && !d.Keyless && !d.Estimated &&
		d.Policy == decision.PredictedTTFT && d.Params.Temperature == 0
}

// spare keeps the ranks that prefill for others out of the choice, or, back, takes them in again.
func (s *Evaluation) spare(back bool) {
	p := s.Pool.Pairs
	if p == nil {
		return
	}
	from, to := decision.VetoNone, decision.VetoRole
	if back {
		from, to = to, from
	}
	for i, prefill := range p.Prefill {
		if prefill && s.Decision.Candidates[i].Veto == from {
			s.Decision.Candidates[i].Veto = to
		}
	}
}

// split takes the cheapest way to serve the request, after a pick was made among the ranks that could serve it whole.
func (s *Evaluation) split() {
	if s.splitting.able {
		selector.Split(&s.Decision, &s.splitting.pairing, s.splitting.ways[:0])
	}
}

// Computes is the candidate that computes the prompt: the pick, or the candidate that prefills for it.
func (s *Evaluation) Computes() *decision.Candidate {
	if w := s.Decision.Split(); w != nil {
		return &s.Decision.Candidates[s.Pool.At(w.Prefill.Slot)]
	}
	return s.Decision.Pick()
}

// Works reports whether the candidate can take part in serving the request.
func Works(cand *decision.Candidate) bool {
	return cand.Veto == decision.VetoNone || cand.Veto == decision.VetoRole
}
