package chooser

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// rankTable has the ranks that exist, by slot. Readers take no lock. Make one with newRankTable.
type rankTable struct {
	clock *clock
	list  atomic.Pointer[[]*rank]
	// conduct compares the ranks' answers with their equals' answers.
	conduct conduct.Fleet

	mu    sync.Mutex  // serialises changes
	kinds speed.Kinds // guarded by mu
}

func newRankTable(clock *clock) *rankTable {
	t := &rankTable{clock: clock}
	t.list.Store(&[]*rank{})
	return t
}

// bySlot returns the ranks, nil for slots without one. The list never changes.
func (t *rankTable) bySlot() []*rank { return *t.list.Load() }

// all yields the ranks.
func (t *rankTable) all() iter.Seq[*rank] {
	return func(yield func(*rank) bool) {
		for _, r := range t.bySlot() {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// at returns the rank of a slot, nil for none.
func (t *rankTable) at(slot replica.Slot) *rank {
	list := t.bySlot()
	if int(slot) >= len(list) {
		return nil
	}
	return list[slot]
}

// AddRank notes that rank index of r exists at slot. A slot that is known keeps its learned state.
func (t *rankTable) AddRank(slot replica.Slot, r *replica.Replica, index int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at(slot) != nil {
		return
	}
	old := t.bySlot()
	list := make([]*rank, max(len(old), int(slot)+1))
	copy(list, old)
	rk := newRank(slot, r, index, t.kinds.Add(r))
	kind, model := rk.speed.Kind()
	rk.conduct = t.conduct.Add(kind, model)
	rk.conduct.Mirror(&rk.avoided)
	list[slot] = rk
	t.list.Store(&list)
}

// remove forgets a rank.
func (t *rankTable) remove(slot replica.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone := t.at(slot)
	if gone == nil {
		return
	}
	gone.leaving.Store(true)
	list := append([]*rank(nil), t.bySlot()...)
	t.kinds.Remove(gone.speed)
	t.conduct.Remove(gone.conduct)
	list[slot] = nil
	t.list.Store(&list)
}

// isLeft reports whether the requests of a leaving rank are to move: also one that is not listed any more, unless new ranks of its
// replica are in its place.
func (t *rankTable) isLeft(of *rank) bool {
	if t.at(of.slot) == of {
		return true
	}
	for r := range t.all() {
		if r.replica == of.replica {
			return false
		}
	}
	return true
}

// update applies the registry's changes of the replica since the rank was added.
func (t *rankTable) update(rk *rank, r *replica.Replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk.known.Swap(r) != r && t.at(rk.slot) == rk {
		t.kinds.Update(rk.speed, r)
		kind, model := rk.speed.Kind()
		t.conduct.Move(rk.conduct, kind, model)
	}
}

// Rate has a rank's learned speed.
type Rate struct {
	Slot    replica.Slot
	Replica replica.ID
	Rank    int
	// TokensPerSecond is the prefill rate at no context, Bend the context at which it halves.
	TokensPerSecond float64
	Bend            float64
	// Overhead is the time in seconds that a request spends outside of engine steps.
	Overhead float64
	// StepTime is the time of a decode step with nothing to read, in seconds.
	StepTime float64
	// Samples counts the pieces of busy time behind this, Spread is the uncertainty of the rate as a
	// share of it, and Source is its origin.
	Samples int
	Spread  float64
	Source  decision.SpeedSource
	// Error is the mean of predicted ÷ actual time to the first token of late.
	Error float64
	// Busy is the share of the last minute's time taken by the prefill routed there.
	Busy float64
	// Conduct is how it behaves compared with its equals.
	Conduct conduct.Record
}

// Rates lists the learned speeds of all ranks.
func (t *rankTable) Rates() []Rate {
	now := t.clock.since(t.clock.now())
	var rates []Rate
	for r := range t.all() {
		m := r.speed.Model()
		rates = append(rates, Rate{
			Slot: r.slot, Replica: r.replica, Rank: r.index, TokensPerSecond: 1 / m.Token, Bend: m.Bend, Overhead: m.Overhead,
			StepTime: m.Base, Samples: m.Samples, Spread: m.Spread, Source: m.Source, Error: r.speed.Error(), Busy: r.load(now), Conduct: r.conduct.About(),
		})
	}
	return rates
}

// ExportModels returns the speed of the ranks that this router has learned about by its own requests.
func (t *rankTable) ExportModels() map[replica.Rank]speed.Model {
	models := map[replica.Rank]speed.Model{}
	for r := range t.all() {
		if m, own := r.speed.Learned(); own {
			models[replica.Rank{Replica: r.replica, Index: r.index}] = m
		}
	}
	return models
}

// ImportModels takes the speed of ranks as other routers have learned it. Ranks that this router learns about itself keep
// their own; unknown ranks are ignored.
func (t *rankTable) ImportModels(models map[replica.Rank]speed.Model) {
	for r := range t.all() {
		if m, ok := models[replica.Rank{Replica: r.replica, Index: r.index}]; ok {
			r.speed.Import(m, t.clock.now())
		}
	}
}

// Heard notes that a rank made progress, for example by its event feed.
func (t *rankTable) Heard(slot replica.Slot) {
	if r := t.at(slot); r != nil {
		r.liveness.Sign()
	}
}
