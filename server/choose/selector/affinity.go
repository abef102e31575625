package selector

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// prefixAffinity follows the text tree: the replica that knows enough of the prompt, else the replica with the smallest tree;
// by load when there is no text or the fleet is too uneven.
type prefixAffinity struct{}

// Select implements policy.
func (prefixAffinity) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	if d.PromptChars == 0 {
		each(d, requests)
		return decision.ReasonNoKey, throw
	}
	low, high := math.Inf(1), math.Inf(-1)
	var best uint32
	smallest := uint32(math.MaxUint32)
	each(d, func(c *decision.Candidate) float64 {
		low, high = min(low, requests(c)), max(high, requests(c))
		best = max(best, c.Chars)
		smallest = min(smallest, c.Held)
		return 0
	})
	if t := d.Params.ImbalanceThreshold; t > 0 && high-low > t {
		each(d, requests)
		return decision.ReasonImbalance, throw
	}
	matched := float64(best)/float64(d.PromptChars) >= d.Params.MatchThreshold
	each(d, func(c *decision.Candidate) float64 {
		if (matched && c.Chars == best) || (!matched && c.Held == smallest) {
			return requests(c)
		}
		return requests(c) + high + 1 // after all replicas in the set
	})
	return decision.ReasonCost, throw
}

// consistentHash takes the owner on the ring, then its successors, then by load. Without a session
// the request's own id is on the ring, which spreads.
type consistentHash struct{}

// Select implements policy.
func (consistentHash) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	reason := decision.ReasonNoKey
	var last uint32
	each(d, func(c *decision.Candidate) float64 { last = max(last, c.Place); return 0 })
	each(d, func(c *decision.Candidate) float64 {
		if c.Place > 0 {
			if !d.Keyless {
				reason = decision.ReasonCost
			}
			return float64(c.Place)
		}
		return float64(last) + 1 + requests(c)
	})
	return reason, throw
}
