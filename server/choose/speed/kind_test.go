package speed

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// scanned is typical by a look at all ranks.
func (k *kind) scanned(r *Rank) *Model {
	var models []*Model
	for _, least := range []int{experienced, 1} {
		for _, o := range k.ranks {
			m := o.model.Load()
			counts := m.Source == decision.SpeedLearned && m.Samples >= least || m.Source == decision.SpeedEngine && least == 1
			if o != r && counts {
				models = append(models, m)
			}
		}
		if len(models) > 0 {
			break
		}
	}
	if len(models) == 0 {
		return nil
	}
	slices.SortStableFunc(models, func(a, b *Model) int {
		switch {
		case a.Token < b.Token:
			return -1
		case a.Token > b.Token:
			return 1
		}
		return 0
	})
	return models[(len(models)-1)/2]
}

// The ranks that count are kept in order; the median among them is that of a look at all ranks.
func TestTheTypicalRankIsTheMedianOfAll(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	kinds := []*kind{{}, {}}
	var ranks, gone []*Rank
	for step := range 2000 {
		k := kinds[r.IntN(2)]
		switch n := r.IntN(20); {
		case len(ranks) < 3 || n == 0 && len(ranks) < 40:
			ranks = append(ranks, k.newRank())
		case n == 1:
			i := r.IntN(len(ranks))
			ranks[i].currentKind().remove(ranks[i])
			gone = append(gone, ranks[i])
			ranks = slices.Delete(ranks, i, i+1)
		case n == 2:
			k.adopt(ranks[r.IntN(len(ranks))])
		case n == 3 && len(gone) > 0: // what a removed rank still learns is its own
			one := gone[r.IntN(len(gone))]
			one.currentKind().publish(one, &Model{Token: 1, Samples: experienced, Source: decision.SpeedLearned})
		default:
			one := ranks[r.IntN(len(ranks))]
			m := &Model{Token: float64(1 + r.IntN(8)), Samples: r.IntN(2 * experienced)}
			if n := r.IntN(8); n > 1 {
				m.Source = decision.SpeedLearned
			} else if n > 0 {
				m.Source = decision.SpeedEngine
			}
			one.currentKind().publish(one, m)
		}
		for _, k := range kinds {
			for _, one := range append(ranks[:len(ranks):len(ranks)], gone...) {
				if got, _ := k.typical(one); got != k.scanned(one) {
					want := k.scanned(one)
					t.Fatalf("step %d: the typical model is %+v, want %+v", step, got, want)
				}
			}
		}
	}
}
