package kvevents_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// both feeds the real index and the simplest sink.
type both struct {
	*mapSink
	index *kvindex.Index
}

func (b both) Store(slot replica.Slot, ev *kvblock.Stored) {
	b.index.Store(slot, ev)
	b.mapSink.Store(slot, ev)
}

func (b both) Remove(slot replica.Slot, ev *kvblock.Removed) {
	b.index.Remove(slot, ev)
	b.mapSink.Remove(slot, ev)
}

func (b both) Clear(slot replica.Slot, tier kvblock.Tier, all bool) {
	b.index.Clear(slot, tier, all)
	b.mapSink.Clear(slot, tier, all)
}

func (b both) Reset(slot replica.Slot) {
	b.index.Reset(slot)
	b.mapSink.Reset(slot)
}

func (b both) SetState(slot replica.Slot, s kvblock.FeedState) {
	b.index.SetState(slot, s)
	b.mapSink.SetState(slot, s)
}

// TestChaosEndsTrueInTheIndex asks the real index about every block that the engines ever had.
func TestChaosEndsTrueInTheIndex(t *testing.T) {
	t.Parallel()
	const ranks = 3
	rounds := 150
	if testing.Short() {
		rounds = 50
	}
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	sink := newSink()
	p := startPlaneWith(t, quick(), both{sink, index}, sink)
	dice := rand.New(rand.NewPCG(11, 12))
	var engines []*engine
	var wires [][2]*wire
	for i := range ranks {
		e := startEngine(t, zmtp.PublisherParams{})
		e.single = true
		slot := replica.Slot(i)
		if err := index.AddRank(slot, kvindex.RankInfo{Rank: replica.Rank{Replica: "x", Index: i}, BlockSize: 4}); err != nil {
			t.Fatal(err)
		}
		w := [2]*wire{startWire(t, e.live), startWire(t, e.replays)}
		engines, wires = append(engines, e), append(wires, w)
		p.Add(slot, replica.Events{Endpoint: w[0].endpoint, Replay: w[1].endpoint}, "x")
	}
	layouts := vllmtest.Layouts()
	for range rounds {
		for i, e := range engines {
			mistreat(dice, e, wires[i][0], wires[i][1], false, layouts)
		}
		time.Sleep(time.Duration(dice.IntN(4)) * time.Millisecond)
	}
	for i, e := range engines {
		wires[i][0].set(-1, 0)
		wires[i][1].set(-1, 0)
		expect(t, p, sink, replica.Slot(i), e, kvblock.FeedExact)
		if got := index.State(replica.Slot(i)); got != kvblock.FeedExact {
			t.Errorf("rank %d: the index says %v", i, got)
		}
	}
	checkIndex(t, index, engines)
}

func checkIndex(t *testing.T, index *kvindex.Index, engines []*engine) {
	t.Helper()
	var hashes []blockhash.Hash
	var overlaps []kvindex.Overlap
	for h := uint64(1); h < maxNext(engines); h++ {
		hashes = blockhash.Chain(hashes[:0], blockTokens(h), 4, blockhash.Namespace{})
		overlaps = index.Match(overlaps[:0], hashes)
		held := map[replica.Slot]bool{}
		for _, o := range overlaps {
			held[o.Slot] = o.GPU > 0
		}
		for i, e := range engines {
			want := e.held[place{kvblock.TierGPU, kvblock.EngineHash(h)}] > 0
			if held[replica.Slot(i)] != want {
				t.Errorf("rank %d, block %d: held %v in the index, %v in the engine", i, h, !want, want)
			}
		}
	}
}

func maxNext(engines []*engine) uint64 {
	n := uint64(0)
	for _, e := range engines {
		n = max(n, e.next)
	}
	return n
}

var _ kvevents.Sink = (*kvindex.Index)(nil)

// TestASnapshotIsJudgedByTheFeed stops a router and starts another one from its snapshot, while the
// engine goes on.
func TestASnapshotIsJudgedByTheFeed(t *testing.T) {
	t.Parallel()
	const slot = replica.Slot(0)
	for _, tt := range []struct {
		name  string
		ring  int
		state kvblock.FeedState
	}{
		{"the ring reaches back to the beginning", 1000, kvblock.FeedExact},
		{"the ring begins later", 5, kvblock.FeedDegraded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEngine(t, zmtp.PublisherParams{Buffer: tt.ring})
			e.single = true
			file := filepath.Join(t.TempDir(), "index")
			router := func(part string) (*kvindex.Index, *kvevents.Plane, func()) {
				t.Helper()
				config := kvindex.DefaultConfig()
				config.Snapshot = file
				index := kvindex.New(config, kvindex.Params{})
				index.Restore()
				if err := index.AddRank(slot, kvindex.RankInfo{Rank: replica.Rank{Replica: "x"}, BlockSize: 4}); err != nil {
					t.Fatal(err)
				}
				p := kvevents.New(quick(), kvevents.Params{Sink: index})
				ctx, cancel := context.WithCancel(t.Context())
				var run sync.WaitGroup
				run.Go(func() { p.Run(ctx) })
				run.Go(func() { index.Run(ctx) })
				p.Add(slot, e.events(), part)
				return index, p, sync.OnceFunc(func() { cancel(); run.Wait() })
			}
			has := func(index *kvindex.Index, h uint64) bool {
				return len(index.Match(nil, blockhash.Chain(nil, blockTokens(h), 4, blockhash.Namespace{}))) > 0
			}
			settled := func(p *kvevents.Plane, state kvblock.FeedState) func() bool {
				return func() bool {
					s, _ := p.Status(slot)
					return s.State == state && s.Next == e.pub.Next() && s.Known && !s.Recovering
				}
			}
			e.publish(40, 0)
			_, p, stop := router("before")
			defer stop()
			eventually(t, "all is known", settled(p, kvblock.FeedExact))
			stop()
			for range 20 { // while no router listens
				e.publish(1, 1)
			}
			index, p, stop := router("after")
			defer stop()
			eventually(t, "the feed has judged", settled(p, tt.state))
			if tt.state == kvblock.FeedExact {
				checkIndex(t, index, []*engine{e})
				return
			}
			for h := uint64(1); h <= 60; h++ {
				held := e.held[place{kvblock.TierGPU, kvblock.EngineHash(h)}] > 0
				if got := has(index, h); h <= 40 && held && !got || h > 55 && got != held {
					t.Errorf("block %d: held %v in the index, %v in the engine", h, got, held)
				}
			}
			e.clear()
			e.publish(3, 0)
			eventually(t, "exact again", settled(p, kvblock.FeedExact))
			checkIndex(t, index, []*engine{e})
		})
	}
}
