package evaluate

import (
	"math"
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// copies prepares the evaluation for copies of the prompt's beginning between ranks.
func (s *Evaluation) copies(req *ask.Request, all *transfer.Copies, now int64) {
	c := &s.copying
	c.Traffic, c.Sharers, c.Moves = c.Traffic[:0], 1, false
	if c.Able = s.Held && s.pairs(req); !c.Able {
		return
	}
	list := all.All()
	if len(list) == 0 && !all.AnyRests() {
		return
	}
	c.Traffic = sized(c.Traffic, len(s.Decision.Candidates))
	clear(c.Traffic)
	for i := range c.Traffic {
		if all.Rests(s.Decision.Candidates[i].Slot, now) {
			c.Traffic[i].Closed, c.Traffic[i].Resting = true, true
		}
	}
	for _, one := range list {
		left, expected := one.Remaining(now)
		if from := s.Pool.At(one.From); from >= 0 {
			c.Traffic[from].Sends = max(c.Traffic[from].Sends, left)
			c.Traffic[from].Asked = c.Traffic[from].Asked || !one.Moves() && left > 0
		}
		to := s.Pool.At(one.To)
		if to < 0 {
			continue
		}
		t := &c.Traffic[to]
		t.Closed = true
		if expected && int(s.Decision.Candidates[to].BlockSize) == one.BlockSize && one.Begins(req.HashesFor(&s.Decision.Candidates[to])) {
			t.Coming, t.Arrives = uint32(min(one.Tokens(), s.Decision.PromptTokens-1)), left
		}
	}
}

// Prefix names the part of the prompt that the rank with the most of it holds; false where nothing may be copied.
func (s *Evaluation) Prefix(req *ask.Request) (key blockhash.Hash, ok bool) {
	if !s.copying.Able {
		return key, false
	}
	var best *decision.Candidate
	for i := range s.Decision.Candidates {
		if c := &s.Decision.Candidates[i]; s.pairing.Members[i].Prefills && (best == nil || c.GPU > best.GPU) {
			best = c
		}
	}
	if best == nil || best.GPU < best.BlockSize {
		return key, false
	}
	hashes, blocks := req.HashesFor(best), int(best.GPU/best.BlockSize)
	if blocks > len(hashes) {
		return key, false
	}
	return hashes[blocks-1], true
}

// SetSharers notes how many requests that wait begin with the prefix.
func (s *Evaluation) SetSharers(n int) { s.copying.Sharers = n }

// evenOut has the prefill of the last minute count alike on all ranks for a request whose prefix many others that wait share: the rank that holds
// the prefix has computed it lately, which is not done again, and the work to come is these requests, on all ranks.
func (s *Evaluation) evenOut() {
	if !s.copying.Able || s.copying.Sharers < selector.LeastSharers {
		return
	}
	var busy, residual, n float64
	for i := range s.Decision.Candidates {
		if c := &s.Decision.Candidates[i]; Works(c) {
			busy, residual, n = busy+c.Busy, residual+c.Residual, n+1
		}
	}
	for i := range s.Decision.Candidates {
		if c := &s.Decision.Candidates[i]; Works(c) {
			c.Busy, c.Residual = busy/n, residual/n // n is above zero
		}
	}
}

// Moves reports whether the request's program moves and its context is copied.
func (s *Evaluation) Moves() bool { return s.Pulls && s.copying.Moves }

// Asked reports whether the rank that computes the prompt is to pass on a cache first: a request that is sent there now would lengthen the
// step for which the copy waits.
func (s *Evaluation) Asked() bool {
	if !s.copying.Able || len(s.copying.Traffic) == 0 {
		return false
	}
	return s.copying.Traffic[s.Pool.At(s.Computes().Slot)].Asked
}

// pull looks for a cheaper way by a copy, after a pick was made.
func (s *Evaluation) pull() {
	s.Pulls = false
	d := &s.Decision
	if !s.copying.Able || d.Chosen < 0 || d.Policy != decision.PredictedTTFT {
		return
	}
	below := d.Pick().Cost
	if w := d.Split(); w != nil {
		below = w.Cost
	}
	s.Pull, s.Pulls = s.copying.Cheapest(d, &s.pairing, below-selector.LeastGain(below))
}

// PullAhead looks for a copy for the requests that are expected to follow one on the holder of its prefix: one that costs less than to compute the prompt
// on any rank without the prefix.
func (s *Evaluation) PullAhead() bool {
	held, below := uint32(0), math.Inf(1)
	for i := range s.Decision.Candidates {
		held = max(held, s.Decision.Candidates[i].GPU)
	}
	for i := range s.Decision.Candidates {
		if c := &s.Decision.Candidates[i]; c.Veto == decision.VetoNone && c.GPU < held/2 {
			below = min(below, c.Cost)
		}
	}
	if math.IsInf(below, 1) {
		return false
	}
	s.SetSharers(selector.LeastSharers)
	s.Pull, s.Pulls = s.copying.Cheapest(&s.Decision, &s.pairing, below)
	return s.Pulls && !s.Pull.Later && s.Pull.From >= 0
}

// Follows returns the request as an arrival among the calls that are forked; false where nothing may be copied.
func (s *Evaluation) Follows(req *ask.Request) (a transfer.Arrival, ok bool) {
	if !s.copying.Able || len(s.Decision.Candidates) == 0 {
		return a, false
	}
	cand := &s.Decision.Candidates[0]
	return transfer.Arrival{Tenant: req.Tenant, Keys: req.HashesFor(cand), BlockSize: int(cand.BlockSize)}, true
}

// PullFor looks for a copy of the prompt for the calls that are expected to begin with it, after a pick was made. tried has the ranks that get none.
func (s *Evaluation) PullFor(fork selector.Fork, tried []replica.Slot) bool {
	d := &s.Decision
	if s.Pulls = false; !s.copying.Able || d.Chosen < 0 {
		return false
	}
	s.Pull, s.Pulls = s.copying.Ahead(d, &s.pairing, fork, func(i int) bool { return slices.Contains(tried, d.Candidates[i].Slot) })
	return s.Pulls
}
