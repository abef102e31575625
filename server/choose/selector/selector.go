package selector

import (
	"math"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Choose gives every candidate of d its cost under d.Policy and fills Chosen, Margin and Reason
// (and the candidates' Uncached, Prefill and TTFT). It reads nothing but d.
func Choose(d *decision.Decision) {
	d.Chosen, d.Margin, d.Reason = -1, 0, decision.ReasonNone
	eligible, last := 0, -1
	_, timed := policyOf(d.Policy).(predictedTTFT)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		predict(d, c)
		c.Cost = 0
		if c.Veto == decision.VetoNone {
			eligible++
			last = i
			if timed { // among thousands of ranks, a second pass over all of a candidate is dear
				c.Cost = predicted(d, c, paceOf(c))
			}
		}
	}
	if eligible == 0 {
		return
	}
	pick(d, eligible, last)
	switch {
	case d.TooLong:
		d.Reason = decision.ReasonTooLong
	case d.Pinned:
		d.Reason = decision.ReasonPinned
	}
}

// pick fills Chosen, Margin and Reason where at least one candidate is eligible; last is the last of them.
func pick(d *decision.Decision, eligible, last int) {
	reason, throw := policyOf(d.Policy).Select(d, dice{state: d.Seed}, eligible) // by value: an interface's pointers go to the heap
	if eligible == 1 {
		d.Chosen, d.Reason = last, decision.ReasonOnly
		if d.Candidates[last].Place != 0 && d.Policy == decision.ConsistentHash {
			d.Reason = decision.ReasonCost
		}
		return
	}
	best, next := cheapest(d)
	if d.Params.Temperature > 0 {
		d.Chosen, d.Reason = draw(d, &throw), decision.ReasonDice
	} else {
		var ties int
		d.Chosen, ties = equal(d, best, &throw)
		d.Reason = reason
		if ties > 1 && reason == decision.ReasonCost {
			d.Reason = decision.ReasonTie
		}
	}
	if best == d.Chosen {
		best = next
	}
	d.Margin = margin(d, best)
}

// Recompute makes the choice again from the inputs that d holds and reports whether it falls on
// the same candidate. d is not changed and must list all candidates (Others and VetoedOthers are 0); the result is the decision made again.
// Of a split request, the choice among the ways to serve it whole is made again, which must still cost more.
func Recompute(d *decision.Decision) (again decision.Decision, same bool) {
	again = *d
	again.Candidates = slices.Clone(d.List())
	Choose(&again)
	if w := d.Split(); w != nil {
		pick := again.Pick()
		return again, pick != nil && pick.Slot == d.Ways[1].Decode.Slot && pick.Cost > w.Cost
	}
	return again, again.Chosen == d.Chosen
}

// cheapest returns the two eligible candidates with the lowest costs, of equal ones the first; -1 for none.
func cheapest(d *decision.Decision) (best, next int) {
	best, next = -1, -1
	for i := range d.Candidates {
		switch c := &d.Candidates[i]; {
		case c.Veto != decision.VetoNone:
		case best < 0 || c.Cost < d.Candidates[best].Cost:
			best, next = i, best
		case next < 0 || c.Cost < d.Candidates[next].Cost:
			next = i
		}
	}
	return best, next
}

// equal returns one of the candidates that are as good as the best one by the dice, and how many there are.
func equal(d *decision.Decision, best int, throw *dice) (pick, ties int) {
	if best < 0 {
		return best, 0
	}
	pick = best
	limit := d.Candidates[best].Cost + noise(d, &d.Candidates[best])
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone && c.Cost <= limit {
			if ties++; throw.below(ties) == 0 {
				pick = i
			}
		}
	}
	return pick, ties
}

// draw picks with a probability that falls with the cost: exp(−(cost − min) / ((max − min)·T)).
func draw(d *decision.Decision, throw *dice) int {
	low, high := span(d.Candidates)
	weight := func(c *decision.Candidate) float64 {
		if high == low {
			return 1
		}
		return math.Exp(-(c.Cost - low) / ((high - low) * d.Params.Temperature))
	}
	var sum float64
	last := -1
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone {
			sum += weight(c)
			last = i
		}
	}
	left := throw.unit() * sum
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Veto == decision.VetoNone {
			if left -= weight(c); left < 0 {
				return i
			}
		}
	}
	return last
}

// span returns the lowest and the highest cost of the eligible candidates.
func span(candidates []decision.Candidate) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for i := range candidates {
		if c := &candidates[i]; c.Veto == decision.VetoNone {
			low, high = min(low, c.Cost), max(high, c.Cost)
		}
	}
	return low, high
}

// margin is how much more the best of the others would cost than the chosen candidate.
func margin(d *decision.Decision, other int) float64 {
	if other < 0 || math.IsInf(d.Candidates[other].Cost, 0) {
		return 0
	}
	return d.Candidates[other].Cost - d.Candidates[d.Chosen].Cost
}
