package programs

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// admitUpTo is the share of a rank's memory up to which programs are admitted: programs with a place grow. Programs that waited are
	// admitted up to admitLateUpTo: where programs wait, each place that is taken away soon costs a whole prefill.
	// While a program of their tenant that has begun waits, new ones are admitted up to admitPassingUpTo.
	// A child is admitted up to admitChildUpTo: its parent's context waits for it. A program that lost its place returns up to
	// admitHeldUpTo to a rank that still holds mostOf its context, below the GPU or on it: anywhere else it is computed again.
	admitUpTo, admitLateUpTo, admitChildUpTo, admitHeldUpTo = 0.85, 0.7, 1.0, 1.0
	admitPassingUpTo                                        = 0.6
	mostOf                                                  = 0.7
	// refillShare is the share of the time to compute a rank's whole memory again up to which a gap makes a program. Sessions with longer gaps
	// that fill the memory take no more than this share of the rank's time when each of their calls computes its whole context.
	refillShare = 0.5
	// leastChance is the chance of a return from which a gap still has a claim.
	leastChance = 0.05
	// likely is the chance of a quick return from which a session is a program.
	likely = 0.5
)

// account is a rank's memory: the sessions that have a place there.
type account struct {
	slot     replica.Slot
	programs []*program
	// whole is the sum of their tokens.
	whole float64
	// capacity is the rank's memory in tokens, 0 when unknown; booked are the tokens of all requests in flight there. They and its pace are of
	// the last choice.
	capacity, booked float64
	pace             Pace
	keeping
}

// place gives p a place.
func (a *account) place(p *program) {
	p.account, p.index, p.history.paused = a, len(a.programs), false
	a.programs = append(a.programs, p)
	a.whole += p.own()
}

// leave takes p's place away.
func (p *program) leave() {
	a := p.account
	if a == nil {
		return
	}
	last := a.programs[len(a.programs)-1]
	a.programs[p.index], last.index = last, p.index
	a.programs[len(a.programs)-1] = nil
	a.programs = a.programs[:len(a.programs)-1]
	a.whole -= p.own()
	if len(a.programs) == 0 {
		a.whole = 0 // no rounding is kept
	}
	p.account = nil
}

// own is the memory that p holds alone.
func (p *program) own() float64 { return max(0, p.tokens-p.shared) }

// claims returns the tokens that the sessions with a place claim at now, and the part of the sessions in flight. Sessions without a
// chance lose their place.
func (a *account) claims(now time.Duration) (all, inFlight float64) {
	for i := 0; i < len(a.programs); {
		p := a.programs[i]
		if p.busy() {
			all += p.own()
			inFlight += p.own()
			i++
			continue
		}
		chance := p.chance(now)
		if chance < leastChance {
			p.leave() // another one takes its index
			continue
		}
		all += chance * p.own()
		i++
	}
	return all, inFlight
}

// worthFor is how long a gap may be for which a place is worth keeping, for a context of tokens; 0: unknown.
func (a *account) worthFor(tokens float64) time.Duration {
	return time.Duration(a.capacity * a.pace.of(tokens) * refillShare * float64(time.Second))
}

// used is the part of the rank's memory in use at now: by claims, and by the requests in flight that belong to no session.
func (a *account) used(now time.Duration) float64 {
	all, inFlight := a.claims(now)
	return all + max(0, a.booked-inFlight)
}

// fits reports whether a program that adds tokens to the rank's memory may be admitted, and how much is used without it.
func (a *account) fits(tokens, upTo float64, now time.Duration) (used float64, ok bool) {
	if a.capacity == 0 {
		return 0, true
	}
	used = a.used(now)
	return used, used+tokens <= upTo*a.capacity || !a.hasPrograms()
}

// hasPrograms reports whether a session with a place is a program. Without one, waiting is of no use.
func (a *account) hasPrograms() bool {
	for _, p := range a.programs {
		if p.likelihood() >= likely {
			return true
		}
	}
	return false
}

// relieve takes places away while claims exceed the memory. Only programs in a gap lose theirs, first the programs whose return is worth
// the least per token: the chance of it times the cost of computing a token of their context again, which grows with its length.
func (a *account) relieve(now time.Duration) {
	if a.capacity == 0 || a.whole+a.booked <= a.capacity {
		return
	}
	for used := a.used(now); used > a.capacity; {
		var victim *program
		var least, chance float64
		for _, p := range a.programs {
			if p.busy() {
				continue
			}
			c := p.chance(now)
			worth := c * a.pace.growth(p.tokens)
			if victim == nil || worth < least {
				victim, least, chance = p, worth, c
			}
		}
		if victim == nil {
			return
		}
		used -= chance * victim.own()
		if victim.likelihood() >= likely {
			victim.ledger.paused++
			victim.history.paused = true
		}
		victim.leave()
	}
}
