package programs

import (
	"math"
	"time"
)

// Plain traffic, such as chats, has no claims between its calls: next to programs that fill the memory its contexts are evicted within a
// minute, and its prompts share each step with theirs. While programs wait for memory, some ranks are therefore kept for it: no program is
// admitted there, and programs with a place there stay until they end. Their number follows the work that plain traffic brings.
const (
	// plainOver is the time over which that work is counted, plainLoad the share of a kept rank's time that it takes, and keepSlack how
	// far their number may be off.
	plainOver, plainLoad, keepSlack = 2 * time.Minute, 0.35, 0.75
	// pressedFor is how long ranks are kept after a program had to wait.
	pressedFor = time.Minute
	// plainFrom is the number of gaps from which a class is known as plain.
	plainFrom = 16
)

// keeping is the plain traffic of an account.
type keeping struct {
	// work is the seconds of prefill per second that plain traffic brings, as of at.
	work float64
	at   time.Duration
	// pressed is when a program that might have begun there had to wait, 0 for never; of is the most ranks that such a program had.
	pressed time.Duration
	of      int
	// kept is set while no program is admitted.
	kept bool
}

// bring counts so many seconds of prefill.
func (k *keeping) bring(seconds float64, now time.Duration) {
	k.work, k.at = k.brings(now)+seconds/plainOver.Seconds(), now
}

// brings is the seconds of prefill per second at now.
func (k *keeping) brings(now time.Duration) float64 {
	return k.work * math.Exp(-(now-k.at).Seconds()/plainOver.Seconds())
}

// isPlain reports whether the sessions like p's are known to be no programs.
func (p *program) isPlain() bool {
	c := p.kin.class()
	return c.outcomes >= plainFrom && c.quick < likely && p.likelihood() < likely
}

// Plain counts a call of no session on the rank that serves it.
func (l *Ledger) Plain(rank Rank, now time.Duration) {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	l.ranks.at(rank.Slot).bring(rank.Work, now)
}

// keep decides which of a program's ranks are kept for plain traffic, and reports whether any is left for the program. mu is held.
func (m *Ranks) keep(ranks []Rank, now time.Duration) (left bool) {
	pressed, kept, of := false, 0, 0
	var work float64
	for i := range ranks {
		a := m.at(ranks[i].Slot)
		pressed = pressed || a.pressed > 0 && now-a.pressed < pressedFor
		work += a.brings(now)
		of = max(of, a.of)
		if a.kept {
			kept++
		}
	}
	if !pressed {
		if kept > 0 {
			for i := range ranks {
				a := m.at(ranks[i].Slot)
				a.kept, a.of = false, 0
			}
		}
		return true
	}
	if len(ranks) >= of { // one that may go to few ranks says nothing of the others
		switch want := min(work/plainLoad, float64(len(ranks)/2)); {
		case want > float64(kept)+keepSlack:
			m.emptiest(ranks).kept = true
			kept++
		case want < float64(kept)-keepSlack:
			m.idlest(ranks, now).kept = false
			kept--
		}
	}
	return kept < len(ranks)
}

// emptiest is the rank with the least of programs that is not kept yet.
func (m *Ranks) emptiest(ranks []Rank) (best *account) {
	for i := range ranks {
		if a := m.at(ranks[i].Slot); !a.kept && (best == nil || a.whole < best.whole) {
			best = a
		}
	}
	return best
}

// idlest is the kept rank with the least plain traffic.
func (m *Ranks) idlest(ranks []Rank, now time.Duration) (best *account) {
	for i := range ranks {
		if a := m.at(ranks[i].Slot); a.kept && (best == nil || a.brings(now) < best.brings(now)) {
			best = a
		}
	}
	return best
}

// press notes that a program waits that might have begun on any of the ranks. mu is held.
func (m *Ranks) press(ranks []Rank, now time.Duration) {
	for i := range ranks {
		a := m.at(ranks[i].Slot)
		a.pressed, a.of = max(1, now), max(a.of, len(ranks))
	}
}
