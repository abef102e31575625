package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// defaultBlock is a rank's block size until it is known.
const defaultBlock = 16

// candidates lists the ranks with their vetoes.
func (c *Chooser) candidates(s *scratch, req *Request) {
	o := &req.Options
	f := selector.Filter{
		Model: req.Served, Excluded: req.Exclude, Denied: o.Denied, Allowed: o.Allowed,
		Pinned: o.Pinned, PinnedRank: o.PinnedRank, MinRank: o.MinRank, MaxRank: o.MaxRank,
	}
	if f.Model == "" {
		f.Model = req.Model
	}
	f.Mute = MostMute(req.Replicas, s.d.At)
	if req.Holder != "" {
		f.Pinned, f.PinnedRank, f.Draining = req.Holder, -1, true
	}
	f.PromptTokens = req.Longest
	d := &s.d
	s.owner = s.owner[:0]
	careful := c.params.Allow != nil && c.anyAllowed(&f, req.Replicas)
	for i, r := range req.Replicas {
		veto := f.Replica(r)
		if veto == decision.VetoNone && careful && !c.params.Allow(r.ID) {
			veto = decision.VetoExcluded
		}
		for index, slot := range r.Slots {
			d.Candidates = append(d.Candidates, decision.Candidate{})
			cand := &d.Candidates[len(d.Candidates)-1]
			cand.Replica, cand.Slot, cand.Rank, cand.Veto = r.ID, slot, uint16(index), veto
			if veto == decision.VetoNone {
				cand.Veto = f.Rank(index)
			}
			cand.Feed = c.params.Index.State(slot)
			block := c.params.Index.BlockSize(slot)
			if block == 0 {
				block = r.BlockSize
			}
			if block == 0 {
				block = defaultBlock
			}
			cand.BlockSize = uint32(block)
			cand.Blocks = uint32(max(0, r.Blocks))
			s.owner = append(s.owner, int32(i))
		}
	}
	c.tooLong(s, req, f.Model)
}

// anyAllowed reports whether a replica that passes the filter has a closed breaker. Without one,
// breakers are ignored: trying is better than rejecting every request.
func (c *Chooser) anyAllowed(f *selector.Filter, replicas []*replica.Replica) bool {
	for _, r := range replicas {
		if f.Replica(r) == decision.VetoNone && c.params.Allow(r.ID) {
			return true
		}
	}
	return false
}

// tooLong allows the replicas with the longest context when no context holds the prompt: the engine's
// error is one that the caller can act on, while "no replica" would invite a retry. A replica that
// could hold the prompt and only cannot take it now keeps its veto: a retry may find it.
func (c *Chooser) tooLong(s *scratch, req *Request, model string) {
	d := &s.d
	longest := 0
	for i := range d.Candidates {
		switch d.Candidates[i].Veto {
		case decision.VetoNone:
			return
		case decision.VetoState, decision.VetoExcluded:
			if context := contextOf(req.Replicas[s.owner[i]], model); context == 0 || context >= req.Longest {
				return
			}
		case decision.VetoContext:
			longest = max(longest, contextOf(req.Replicas[s.owner[i]], model))
		default: // the caller's option, which no retry changes
		}
	}
	if longest == 0 {
		return
	}
	for i := range d.Candidates {
		if cand := &d.Candidates[i]; cand.Veto == decision.VetoContext && contextOf(req.Replicas[s.owner[i]], model) == longest {
			cand.Veto = decision.VetoNone
		}
	}
	d.TooLong, s.held = true, false
}

func contextOf(r *replica.Replica, model string) int {
	m, _ := r.Serves(model)
	return selector.Context(r, m)
}

// panicFor is how long replicas that do not answer are still used, when they are most of a pool.
const panicFor = time.Minute

// MostMute reports whether most of a pool's replicas became unhealthy lately only because their probes got no
// answer. Then this machine or its network is more likely at fault than all of them, so they stay in use for a while.
func MostMute(replicas []*replica.Replica, now time.Time) bool {
	mute, others := 0, 0
	for _, r := range replicas {
		switch {
		case r.Mute && r.State == replica.StateUnhealthy && now.Sub(r.Since) < panicFor:
			mute++
		case r.State == replica.StateReady, r.State == replica.StateUnhealthy:
			others++
		}
	}
	return mute > others
}
