package evaluate

import (
	"math"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// cheapestListed and holdersListed are how many ranks the record of a larger pool lists at least for their cost and for their blocks.
const cheapestListed, holdersListed = 32, 16

// listing selects the candidates that the record of a decision among many ranks lists: the pick, the cheapest ones, the candidates that
// hold most of the prompt or that the policy remembers, the fastest one, the cheapest one of another replica, and one of each veto. Each
// candidate left out costs at least as much as the cheapest ones listed, and holds no more than the holders listed.
type listing struct {
	keep              []bool
	kept              []decision.Candidate
	cheapest, holders least
}

// list sets kept to the candidates of all that the record lists, and d's figures of them and the others.
func (l *listing) list(d, all *decision.Ranks) {
	l.keep = slices.Grow(l.keep[:0], len(all.Candidates))[:len(all.Candidates)]
	clear(l.keep)
	l.cheapest.reset(cheapestListed)
	l.holders.reset(holdersListed)
	var vetoes [256]bool
	other, fastest, vetoed := -1, -1, 0
	pick := all.Pick()
	for i := range all.Candidates {
		cand := &all.Candidates[i]
		if held := cand.Overlap.Tokens(); held > 0 {
			l.holders.offer(-float64(held), i)
		}
		if cand.Session || cand.Place > 0 {
			l.keep[i] = true
		}
		if cand.Veto != decision.VetoNone {
			vetoed++
			l.keep[i] = l.keep[i] || !vetoes[cand.Veto]
			vetoes[cand.Veto] = true
			if pick == nil { // no rank can serve: the first ones show why
				l.cheapest.offer(float64(i), i)
			}
			continue
		}
		if cand.Cost < l.cheapest.below {
			l.cheapest.offer(cand.Cost, i)
		}
		if (other < 0 || cand.Cost < all.Candidates[other].Cost) && cand.Replica != pick.Replica {
			other = i
		}
		if cand.TTFT > 0 && (fastest < 0 || cand.TTFT < all.Candidates[fastest].TTFT) {
			fastest = i
		}
	}
	for _, i := range []int{all.Chosen, other, fastest} {
		if i >= 0 {
			l.keep[i] = true
		}
	}
	l.cheapest.mark(l.keep)
	l.holders.mark(l.keep)
	l.copy(d, all, vetoed)
}

// copy copies the kept candidates; vetoed of all candidates could not be chosen.
func (l *listing) copy(d, all *decision.Ranks, vetoed int) {
	l.kept = l.kept[:0]
	for i, keep := range l.keep {
		if !keep {
			continue
		}
		if i == all.Chosen {
			d.Chosen = len(l.kept)
		}
		l.kept = append(l.kept, all.Candidates[i])
		if all.Candidates[i].Veto != decision.VetoNone {
			vetoed--
		}
	}
	d.VetoedOthers = vetoed
	d.Others = len(all.Candidates) - len(l.kept) - vetoed
}

// least keeps the entries with the lowest keys, of equal keys the first.
type least struct {
	keys  []float64 // ascending
	at    []int
	most  int
	below float64 // keys from here on are not taken
}

func (l *least) reset(most int) {
	l.keys, l.at, l.most, l.below = l.keys[:0], l.at[:0], most, math.Inf(1)
}

func (l *least) offer(key float64, i int) {
	if key >= l.below {
		return
	}
	n := len(l.keys)
	if n < l.most {
		l.keys, l.at = append(l.keys, key), append(l.at, i)
	} else {
		n--
	}
	for ; n > 0 && l.keys[n-1] > key; n-- {
		l.keys[n], l.at[n] = l.keys[n-1], l.at[n-1]
	}
	l.keys[n], l.at[n] = key, i
	if len(l.keys) == l.most {
		l.below = l.keys[l.most-1]
	}
}

func (l *least) mark(keep []bool) {
	for _, i := range l.at {
		keep[i] = true
	}
}
