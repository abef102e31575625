package kvindex_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

var noDeadline time.Time

// TestReadersNeverSeeARankThatHoldsNothing has even ranks hold blocks of one family and odd
// ranks of another, in ever changing sets, so that set ids are used again and again under the
// readers. A reader that trusted a stale id would see a rank of the other family.
func TestReadersNeverSeeARankThatHoldsNothing(t *testing.T) {
	const ranks, blocks = 40, 300
	ix := newIndex(t, ranks+1) // the last one never holds anything
	family := [2][]blockhash.Hash{}
	events := [2][]*kvblock.Stored{}
	for f := range family {
		for i := range blocks {
			ev := stored(uint32(1+f*blocks+i), 1) // roots, so that each has a set of its own
			events[f] = append(events[f], ev)
			family[f] = append(family[f], chain(ev.Tokens)[0])
		}
	}
	rounds := 5_000 // ids are used again a few hundred times
	if testing.Short() || raceEnabled {
		rounds = 2_000
	}
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	for slot := range replica.Slot(ranks) {
		writers.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(slot), 4))
			held := make([]bool, blocks)
			for i := range rounds {
				n := dice.IntN(blocks)
				ev := events[slot%2][n]
				if held[n] {
					ix.Remove(slot, &kvblock.Removed{Hashes: ev.Hashes})
				} else {
					ix.Store(slot, ev)
				}
				held[n] = !held[n]
				if i%1500 == 1499 {
					ix.Reset(slot)
					clear(held)
				}
			}
		})
	}
	for r := range 3 {
		readers.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(r), 6))
			var room [ranks + 1]kvindex.Overlap
			for !done.Load() {
				f := dice.IntN(2)
				for _, o := range ix.Match(room[:0], family[f][dice.IntN(blocks):]) {
					if int(o.Slot)%2 != f || o.Slot == ranks || o.GPU == 0 {
						t.Errorf("slot %d is said to hold %d blocks of family %d", o.Slot, o.GPU, f)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	t.Logf("%d lookups started over", ix.Stats().Retries)
	for slot := range replica.Slot(ranks) {
		ix.Reset(slot)
	}
	for f := range family {
		expect(t, ix, family[f])
	}
}

// TestEverythingAtOnce calls all methods from many goroutines; the race detector judges.
func TestEverythingAtOnce(t *testing.T) {
	const ranks = 6
	ix := newIndex(t, 0)
	prompt := stored(1, 40)
	all := chain(prompt.Tokens)
	var wg sync.WaitGroup
	for slot := range replica.Slot(ranks) {
		info := kvindex.RankInfo{Rank: replica.Rank{Replica: "x", Index: int(slot)}, Capacity: 30}
		wg.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(slot), 8))
			for range 100 {
				if err := ix.AddRank(slot, info); err != nil {
					t.Error(err)
					return
				}
				ix.Routed(slot, all)
				ix.SetState(slot, kvblock.FeedExact)
				for range 10 {
					n := 1 + dice.IntN(40)
					ix.Store(slot, stored(1, n))
					b := ix.Predict(slot, all, time.Now().Add(time.Duration(dice.IntN(2000))*time.Microsecond))
					if dice.IntN(2) == 0 {
						b.End()
					}
					ix.Remove(slot, &kvblock.Removed{Hashes: prompt.Hashes[n/2 : n]})
				}
				ix.Clear(slot, kvblock.TierGPU, dice.IntN(2) == 0)
				ix.RemoveRank(slot)
			}
		})
	}
	var done atomic.Bool
	var others sync.WaitGroup
	for _, call := range []func(){
		func() { ix.Match(nil, all) },
		func() { ix.Path(all[:3]); ix.BlockSizes() },
		func() { ix.Stats() },
		func() { ix.Expire(time.Now()) },
		func() {
			if err := ix.Snapshot(discard{}); err != nil {
				t.Error(err)
			}
		},
	} {
		others.Go(func() {
			for !done.Load() {
				call()
			}
		})
	}
	wg.Wait()
	done.Store(true)
	others.Wait()
	if s := ix.Stats(); s.Blocks != 0 || s.Held != [kvblock.Tiers]int64{} || s.Believed != 0 || s.Sets != 0 {
		t.Errorf("%+v remains after all ranks are gone", s)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func TestMatchDoesNotAllocate(t *testing.T) {
	if underRace {
		t.Skip("the race detector makes pools forget at random")
	}
	ix := newIndex(t, 3)
	ev := stored(1, 100)
	all := chain(ev.Tokens)
	for slot := range replica.Slot(3) {
		ix.Store(slot, ev)
		cpu := *ev
		cpu.Tier = kvblock.TierCPU
		ix.Store(slot, &cpu)
	}
	ix.Predict(0, chain(tokens(2, 10)), noDeadline)
	room := make([]kvindex.Overlap, 0, 3)
	if n := testing.AllocsPerRun(100, func() { ix.Match(room, all) }); n != 0 {
		t.Errorf("Match allocates %v times, want 0", n)
	}
}
