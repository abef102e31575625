package programs

import "time"

// A program moves at its next call when claims take moveFrom of its rank's memory, its context is the cheapest there to compute again, and another
// rank has moveGap of the memory more to spare, the context counted. Contexts only grow: one that moves early moves cheaply.
const moveFrom, moveGap = 0.85, 0.3

// shouldMove reports whether the program, whose only call has arrived, had better be on another rank.
func (p *program) shouldMove(now time.Duration) bool {
	a := p.account
	if a == nil || a.capacity == 0 || a.whole+a.booked < moveFrom*a.capacity { // used is not more
		return false
	}
	return p.known && p.running == 0 && p.waiting == 1 && p.likelihood() >= likely && p.own() >= p.tokens/2 && a.isCheapest(p) && a.used(now) >= moveFrom*a.capacity
}

// isCheapest reports whether no other program on the rank has a smaller context, and no one before it in the account an equal one.
func (a *account) isCheapest(p *program) bool {
	for _, o := range a.programs {
		if (o.tokens < p.tokens || o.tokens == p.tokens && o.index < p.index) && o.likelihood() >= likely {
			return false
		}
	}
	return true
}

// mostAt is the use of another rank up to which a program with a context of tokens moves there from this one.
func (a *account) mostAt(tokens float64, now time.Duration) float64 {
	return a.used(now) - tokens - moveGap*a.capacity
}
