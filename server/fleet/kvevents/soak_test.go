package kvevents_test

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// TestSoak runs feeds and index under faults for as long as KVPILOT_SOAK says and fails when memory,
// goroutines or the index's size grow, or when the index is not true in the end (make soak).
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("KVPILOT_SOAK"))
	if err != nil {
		t.Skip("KVPILOT_SOAK gives no length, for example 10m: make soak sets it")
	}
	const ranks = 6
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	sink := newSink()
	p := startPlaneWith(t, quick(), both{sink, index}, sink)
	add := func(i int) {
		if err := index.AddRank(replica.Slot(i), kvindex.RankInfo{Rank: replica.Rank{Replica: "s", Index: i}, BlockSize: 4}); err != nil {
			t.Fatal(err)
		}
	}
	var engines []*engine
	var wires [][2]*wire
	for i := range ranks {
		e := startEngine(t, zmtp.PublisherParams{Buffer: 500})
		e.single = true
		engines = append(engines, e)
		wires = append(wires, [2]*wire{startWire(t, e.live), startWire(t, e.replays)})
		add(i)
		p.Add(replica.Slot(i), replica.Events{Endpoint: wires[i][0].endpoint, Replay: wires[i][1].endpoint}, "s")
	}
	var looking sync.WaitGroup
	var stop atomic.Bool
	looking.Go(func() {
		var overlaps []kvindex.Overlap
		hashes := blockhash.Chain(nil, blockTokens(1), 4, blockhash.Namespace{})
		for !stop.Load() {
			overlaps = index.Match(overlaps[:0], hashes)
			time.Sleep(time.Millisecond)
		}
	})
	var samples []sample
	layouts := vllmtest.Layouts()
	dice := rand.New(rand.NewPCG(21, 22))
	began, next := time.Now(), time.Now().Add(length/20)
	for time.Since(began) < length {
		for i, e := range engines {
			churn(dice, e, wires[i], layouts)
		}
		if dice.IntN(2000) == 0 { // a replica goes and comes
			i := dice.IntN(ranks)
			p.Remove(replica.Slot(i))
			index.RemoveRank(replica.Slot(i))
			sink.Reset(replica.Slot(i))
			add(i)
			p.Add(replica.Slot(i), replica.Events{Endpoint: wires[i][0].endpoint, Replay: wires[i][1].endpoint}, "s")
		}
		time.Sleep(time.Millisecond)
		if time.Now().After(next) {
			samples = append(samples, measure(engines))
			t.Logf("%v: %v", time.Since(began).Round(time.Second), samples[len(samples)-1])
			next = next.Add(length / 20)
		}
	}
	stop.Store(true)
	looking.Wait()
	for i, e := range engines {
		wires[i][0].set(-1, 0)
		wires[i][1].set(-1, 0)
		e.clear() // the ring is short: only this makes the content known again
		e.publish(50, 5)
		s := expect(t, p, sink, replica.Slot(i), e, kvblock.FeedExact)
		t.Logf("rank %d: batches %d, replayed %d, connects %d, gaps %d, resets %d, restarts %d, pauses %d", i, s.Batches, s.Replayed, s.Connects, s.Gaps, s.Resets, s.Restarts, s.Pauses)
	}
	checkIndex(t, index, engines)
	checkFlat(t, samples)
}

// churn is one step of an engine with a bounded cache, seldom mistreated.
func churn(dice *rand.Rand, e *engine, w [2]*wire, layouts []vllmtest.Layout) {
	if dice.IntN(200) == 0 {
		mistreat(dice, e, w[0], w[1], false, layouts)
		return
	}
	if dice.IntN(100) == 0 {
		w[0].set(-1, 0)
		w[1].set(-1, 0)
	}
	remove := 0
	if len(e.held) > 1000 {
		remove = 8
	}
	e.publish(4+dice.IntN(4), remove)
	if e.next > 1<<20 {
		e.clear()
		e.next = 1 // the same blocks again, so that the check at the end stays short
	}
}

type sample struct {
	heap, rss  uint64
	goroutines int
	held       int
}

func measure(engines []*engine) (s sample) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap, s.goroutines = m.HeapAlloc, runtime.NumGoroutine()
	for _, e := range engines {
		s.held += len(e.held)
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseUint(strings.Fields(value)[0], 10, 64)
			s.rss = kb << 10
		}
	}
	return s
}

// checkFlat compares the second quarter of the run with the last.
func checkFlat(t *testing.T, samples []sample) {
	t.Helper()
	if len(samples) < 8 {
		t.Fatalf("%d samples are too few to judge", len(samples))
	}
	quarter := len(samples) / 4
	mean := func(list []sample, of func(sample) uint64) uint64 {
		sum := uint64(0)
		for _, s := range list {
			sum += of(s)
		}
		return sum / uint64(len(list))
	}
	early, late := samples[quarter:2*quarter], samples[len(samples)-quarter:]
	for _, c := range []struct {
		name  string
		of    func(sample) uint64
		slack uint64
	}{
		{"heap bytes", func(s sample) uint64 { return s.heap }, 8 << 20},
		{"resident bytes", func(s sample) uint64 { return s.rss }, 24 << 20},
		{"goroutines", func(s sample) uint64 { return uint64(s.goroutines) }, 20},
	} {
		if before, after := mean(early, c.of), mean(late, c.of); after > before+before/10+c.slack {
			t.Errorf("%s grew from %d to %d", c.name, before, after)
		}
	}
}
