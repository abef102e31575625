package rank

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Table has the ranks that exist, by slot. Readers take no lock. Make one with newRankTable.
type Table struct {
	clock *clock.Clock
	list  atomic.Pointer[[]*Rank]
	// Conduct compares the ranks' answers with their equals' answers.
	Conduct conduct.Fleet

	loads   transfer.Loads
	stalled atomic.Int64 // ranks that count as stalled

	mu    sync.Mutex  // serialises changes
	kinds speed.Kinds // guarded by mu
}

// NewTable returns a table without ranks.
func NewTable(clock *clock.Clock) *Table {
	t := &Table{clock: clock}
	t.list.Store(&[]*Rank{})
	return t
}

// BySlot returns the ranks, nil for slots without one. The list never changes.
func (t *Table) BySlot() []*Rank { return *t.list.Load() }

// All yields the ranks.
func (t *Table) All() iter.Seq[*Rank] {
	return func(yield func(*Rank) bool) {
		for _, r := range t.BySlot() {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// At returns the rank of a slot, nil for none.
func (t *Table) At(slot replica.Slot) *Rank {
	list := t.BySlot()
	if int(slot) >= len(list) {
		return nil
	}
	return list[slot]
}

// AddRank notes that rank index of r exists at slot. A slot that is known keeps its learned state.
func (t *Table) AddRank(slot replica.Slot, r *replica.Replica, index int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.At(slot) != nil {
		return
	}
	old := t.BySlot()
	list := make([]*Rank, max(len(old), int(slot)+1))
	copy(list, old)
	rk := newRank(slot, r, index, t.kinds.Add(r))
	kind, model := rk.Speed.Kind()
	rk.Conduct, rk.Tiers = t.Conduct.Add(kind, model), transfer.NewTiers(&t.loads, kind)
	rk.Conduct.Mirror(&rk.Avoided)
	rk.Liveness.Count(&t.stalled)
	list[slot] = rk
	t.list.Store(&list)
}

// Remove forgets a rank.
func (t *Table) Remove(slot replica.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone := t.At(slot)
	if gone == nil {
		return
	}
	gone.Leaving.Store(true)
	gone.Liveness.Forget()
	list := append([]*Rank(nil), t.BySlot()...)
	t.kinds.Remove(gone.Speed)
	t.Conduct.Remove(gone.Conduct)
	list[slot] = nil
	t.list.Store(&list)
}

// IsLeft reports whether the requests of a leaving rank are to move: also one that is not listed any more, unless new ranks of its
// replica are in its place.
func (t *Table) IsLeft(of *Rank) bool {
	if t.At(of.Slot) == of {
		return true
	}
	for r := range t.All() {
		if r.Replica == of.Replica {
			return false
		}
	}
	return true
}

// AnyStalled reports whether a rank counts as stalled.
func (t *Table) AnyStalled() bool { return t.stalled.Load() > 0 }

// Update applies the registry's changes of the replica since the rank was added.
func (t *Table) Update(rk *Rank, r *replica.Replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk.Known.Swap(r) != r && t.At(rk.Slot) == rk {
		t.kinds.Update(rk.Speed, r)
		kind, model := rk.Speed.Kind()
		t.Conduct.Move(rk.Conduct, kind, model)
		rk.Tiers.Move(&t.loads, kind)
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
func (t *Table) Rates() []Rate {
	now := t.clock.Since(t.clock.Now())
	var rates []Rate
	for r := range t.All() {
		m := r.Speed.Model()
		rates = append(rates, Rate{
			Slot: r.Slot, Replica: r.Replica, Rank: r.Index, TokensPerSecond: 1 / m.Token, Bend: m.Bend, Overhead: m.Overhead,
			StepTime: m.Base, Samples: m.Samples, Spread: m.Spread, Source: m.Source, Error: r.Speed.Error(), Busy: r.load(now), Conduct: r.Conduct.About(),
		})
	}
	return rates
}

// ExportModels returns the speed of the ranks that this router has learned about by its own requests.
func (t *Table) ExportModels() map[replica.Rank]speed.Model {
	models := map[replica.Rank]speed.Model{}
	for r := range t.All() {
		if m, own := r.Speed.Learned(); own {
			models[replica.Rank{Replica: r.Replica, Index: r.Index}] = m
		}
	}
	return models
}

// ImportModels takes the speed of ranks as other routers have learned it. Ranks that this router learns about itself keep
// their own; unknown ranks are ignored.
func (t *Table) ImportModels(models map[replica.Rank]speed.Model) {
	for r := range t.All() {
		if m, ok := models[replica.Rank{Replica: r.Replica, Index: r.Index}]; ok {
			r.Speed.Import(m, t.clock.Now())
		}
	}
}

// ExportLoads returns the times of loads from tiers below the GPU, for the ranks that this router has seen any at.
func (t *Table) ExportLoads() map[replica.Rank]transfer.Times {
	loads := map[replica.Rank]transfer.Times{}
	for r := range t.All() {
		if times := r.Tiers.Learned(); times != (transfer.Times{}) {
			loads[replica.Rank{Replica: r.Replica, Index: r.Index}] = times
		}
	}
	return loads
}

// ImportLoads takes the times of loads as other routers have seen them. Kinds of engines that this router has seen loads of keep their own; unknown ranks
// are ignored.
func (t *Table) ImportLoads(loads map[replica.Rank]transfer.Times) {
	for r := range t.All() {
		if times, ok := loads[replica.Rank{Replica: r.Replica, Index: r.Index}]; ok {
			r.Tiers.Import(times)
		}
	}
}

// Heard notes that a rank made progress, for example by its event feed.
func (t *Table) Heard(slot replica.Slot) {
	if r := t.At(slot); r != nil {
		r.Liveness.Sign()
	}
}
