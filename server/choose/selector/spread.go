package selector

import "github.com/kvpilot/kvpilot/server/domain/decision"

// leastTokens takes the rank with the fewest prompt tokens to prefill.
type leastTokens struct{}

// Select implements policy.
func (leastTokens) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	each(d, func(c *decision.Candidate) float64 { return float64(c.QueuedTokens) })
	return decision.ReasonCost, throw
}

// leastRequests takes the rank with the fewest requests in flight.
type leastRequests struct{}

// Select implements policy.
func (leastRequests) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	each(d, requests)
	return decision.ReasonCost, throw
}

// powerOfTwo draws two candidates and prices the less busy one lowest.
type powerOfTwo struct{}

// Select implements policy.
func (powerOfTwo) Select(d *decision.Decision, throw dice, eligible int) (decision.Reason, dice) {
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
	return decision.ReasonDice, throw
}

// roundRobin takes the candidates in turn.
type roundRobin struct{}

// Select implements policy.
func (roundRobin) Select(d *decision.Decision, throw dice, eligible int) (decision.Reason, dice) {
	turn, n := int(d.Cursor)%eligible, -1
	each(d, func(*decision.Candidate) float64 {
		n++
		return float64((n - turn + eligible) % eligible)
	})
	return decision.ReasonCost, throw
}

// random draws one candidate.
type random struct{}

// Select implements policy.
func (random) Select(d *decision.Decision, throw dice, eligible int) (decision.Reason, dice) {
	lucky, n := throw.below(eligible), -1
	each(d, func(*decision.Candidate) float64 {
		if n++; n == lucky {
			return 0
		}
		return 1
	})
	return decision.ReasonDice, throw
}
