package selector

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// price sets the cost of each eligible candidate under d.Policy; the lowest will win. There is
// at least one eligible candidate. It returns the reason that a clear winner will have.
func price(d *decision.Decision, throw *dice, eligible int) decision.Reason {
	switch d.Policy {
	case decision.OverlapLoad:
		overlapLoad(d)
	case decision.WeightedScorers:
		weightedScorers(d)
	case decision.PrefixAffinity:
		return prefixAffinity(d)
	case decision.ConsistentHash:
		return consistentHash(d)
	case decision.LeastTokens:
		each(d, func(c *decision.Candidate) float64 { return float64(c.QueuedTokens) })
	case decision.LeastRequests:
		each(d, requests)
	case decision.PowerOfTwo:
		return powerOfTwo(d, throw, eligible)
	case decision.RoundRobin:
		roundRobin(d, eligible)
	case decision.Random:
		return random(d, throw, eligible)
	default: // predicted-ttft
		each(d, func(c *decision.Candidate) float64 { return predicted(d, c) })
	}
	if d.Keyless && d.Policy.ReadsCache() && !anyHeld(d) {
		return decision.ReasonNoKey
	}
	return decision.ReasonCost
}

// anyHeld reports whether a candidate is believed to hold something of the prompt.
func anyHeld(d *decision.Decision) bool {
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.GPU+c.CPU+c.Disk > 0 {
			return true
		}
	}
	return false
}

func each(d *decision.Decision, cost func(*decision.Candidate) float64) {
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone {
			c.Cost = cost(c)
		}
	}
}

func requests(c *decision.Candidate) float64 { return float64(c.Requests) }

// overlapLoad is Dynamo's cost, in blocks: uncached prefill backlog with this request, less
// credit for what is held, plus decode blocks.
func overlapLoad(d *decision.Decision) {
	least := math.Inf(1)
	each(d, func(c *decision.Candidate) float64 {
		least = min(least, float64(c.QueuedTokens))
		return 0
	})
	each(d, func(c *decision.Candidate) float64 {
		block := float64(max(1, c.BlockSize))
		own := math.Ceil(float64(d.PromptTokens) / block)
		raw := (float64(c.QueuedTokens) + float64(d.PromptTokens)) / block
		credit := d.Params.OverlapCredit
		if d.Params.CreditDecay > 0 && own > 0 {
			credit /= 1 + d.Params.CreditDecay*(float64(c.QueuedTokens)-least)/block/own
		}
		held := (credit*float64(c.GPU) + d.Params.CPUCredit*float64(c.CPU) + d.Params.DiskCredit*float64(c.Disk)) / block
		return d.Params.PrefillScale*max(0, raw-held) + c.DecodeBlocks + d.Params.RequestWeight*float64(c.Requests)
	})
}

// weightedScorers sums scores from 0 to 1, as llm-d's default profile does: share of the prompt
// held, emptiness of the queue among the candidates, free KV memory. The cost is the negative sum.
func weightedScorers(d *decision.Decision) {
	low, high := math.Inf(1), math.Inf(-1)
	queue := func(c *decision.Candidate) float64 { return float64(max(int32(c.Waiting), c.EngineWaiting)) }
	each(d, func(c *decision.Candidate) float64 {
		low, high = min(low, queue(c)), max(high, queue(c))
		return 0
	})
	each(d, func(c *decision.Candidate) float64 {
		prefix, empty := 0.0, 1.0
		if d.PromptTokens > 0 {
			prefix = min(1, (float64(c.GPU)+d.Params.CPUCredit*float64(c.CPU)+d.Params.DiskCredit*float64(c.Disk))/float64(d.PromptTokens))
		}
		if high > low {
			empty = (high - queue(c)) / (high - low)
		}
		return -(d.Params.PrefixWeight*prefix + d.Params.QueueWeight*empty + d.Params.KVWeight*(1-usage(c)))
	})
}

// usage is the share of the KV memory in use: the engine's word, else what is booked.
func usage(c *decision.Candidate) float64 {
	switch {
	case c.KVUsage >= 0:
		return min(1, float64(c.KVUsage))
	case c.Blocks > 0:
		return min(1, c.DecodeBlocks/float64(c.Blocks))
	}
	return 0
}

// prefixAffinity follows the text tree: the replica that knows enough of the prompt, else the one
// with the smallest tree; by load when there is no text or the fleet is too uneven.
func prefixAffinity(d *decision.Decision) decision.Reason {
	if d.PromptChars == 0 {
		each(d, requests)
		return decision.ReasonNoKey
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
		return decision.ReasonImbalance
	}
	matched := float64(best)/float64(d.PromptChars) >= d.Params.MatchThreshold
	each(d, func(c *decision.Candidate) float64 {
		if (matched && c.Chars == best) || (!matched && c.Held == smallest) {
			return requests(c)
		}
		return requests(c) + high + 1 // after all those in the set
	})
	return decision.ReasonCost
}

// consistentHash takes the owner on the ring, then its successors, then by load. Without a session
// the request's own id is on the ring, which spreads.
func consistentHash(d *decision.Decision) decision.Reason {
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
	return reason
}

// powerOfTwo draws two candidates and prices the less busy one lowest.
func powerOfTwo(d *decision.Decision, throw *dice, eligible int) decision.Reason {
	a := throw.below(eligible)
	b := a
	if eligible > 1 {
		if b = throw.below(eligible - 1); b >= a {
			b++
		}
	}
	n := -1
	var most float64
	each(d, func(c *decision.Candidate) float64 { most = max(most, requests(c)); return 0 })
	each(d, func(c *decision.Candidate) float64 {
		if n++; n == a || n == b {
			return requests(c)
		}
		return most + 1 + requests(c)
	})
	return decision.ReasonDice
}

func roundRobin(d *decision.Decision, eligible int) {
	turn, n := int(d.Cursor)%eligible, -1
	each(d, func(*decision.Candidate) float64 {
		n++
		return float64((n - turn + eligible) % eligible)
	})
}

func random(d *decision.Decision, throw *dice, eligible int) decision.Reason {
	lucky, n := throw.below(eligible), -1
	each(d, func(*decision.Candidate) float64 {
		if n++; n == lucky {
			return 0
		}
		return 1
	})
	return decision.ReasonDice
}
