package programs

import "time"

// A program moves at its next call when claims take moveFrom of its rank's memory, its context is the cheapest there to compute again, and another
// rank has moveGap of the memory more to spare, the context counted. Contexts only grow: one that moves early moves cheaply.
const moveFrom, moveGap = 0.85, 0.3

// shouldMove reports whether the program, whose only call has arrived, had better be on another rank.
func (p *program) shouldMove(now time.Duration) bool {
	a := p.account
	return a != nil && a.capacity > 0 && p.known && p.running == 0 && p.waiting == 1 && p.likelihood() >= likely && p.own() >= p.tokens/2 &&
		a.isCheapest(p) && a.used(now) >= moveFrom*a.capacity
}

// isCheapest reports whether no other program on the rank has a smaller context.
func (a *account) isCheapest(p *program) bool {
	for _, o := range a.programs {
		if o != p && o.tokens < p.tokens && o.likelihood() >= likely {
			return false
		}
	}
	return true
}

// movesTo reports whether a program with a context of tokens moves from the rank to one of which so much is used.
func (a *account) movesTo(used, tokens float64, now time.Duration) bool {
	return used+tokens+moveGap*a.capacity < a.used(now)
}
