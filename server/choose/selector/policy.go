package selector

import "github.com/kvpilot/kvpilot/server/domain/decision"

// policy is one rule of choice.
type policy interface {
	// Select sets the cost of each eligible candidate of d, of which there is at least one; the lowest cost is chosen. It
	// returns the reason that a clear winner has, and the dice after its throws.
	Select(d *decision.Decision, throw dice, eligible int) (decision.Reason, dice)
}

// policyOf returns the rule that p names.
func policyOf(p decision.Policy) policy {
	switch p {
	case decision.OverlapLoad:
		return overlapLoad{}
	case decision.WeightedScorers:
		return weightedScorers{}
	case decision.PrefixAffinity:
		return prefixAffinity{}
	case decision.ConsistentHash:
		return consistentHash{}
	case decision.LeastTokens:
		return leastTokens{}
	case decision.LeastRequests:
		return leastRequests{}
	case decision.PowerOfTwo:
		return powerOfTwo{}
	case decision.RoundRobin:
		return roundRobin{}
	case decision.Random:
		return random{}
	default:
		return predictedTTFT{}
	}
}

// each sets the cost of every eligible candidate.
func each(d *decision.Decision, cost func(*decision.Candidate) float64) {
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone {
			c.Cost = cost(c)
		}
	}
}

func requests(c *decision.Candidate) float64 { return float64(c.Requests) }

// cacheReason is the reason of a policy that reads the replicas' overlap: without a key, when nothing is known of the prompt.
func cacheReason(d *decision.Decision) decision.Reason {
	if !d.Keyless {
		return decision.ReasonCost
	}
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Overlap.Tokens() > 0 {
			return decision.ReasonCost
		}
	}
	return decision.ReasonNoKey
}
