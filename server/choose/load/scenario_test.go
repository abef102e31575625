package load_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// The scenarios are numbered as in the founding behaviour's section 20.

// running runs the book's sweep inside a synctest bubble.
func running(t *testing.T, b *load.Book) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func wantIdle(t *testing.T, b *load.Book, slot replica.Slot) {
	t.Helper()
	got := b.View(slot, time.Now())
	got.Version = 0
	if got != (load.RankLoad{}) {
		t.Errorf("rank %d: got %+v, want nothing booked", slot, got)
	}
}

func TestEqualOverlapLowerLoad(t *testing.T) {
	b := newBook(t, 2)
	var held []*load.Reservation
	for i := range 8 {
		held = append(held, mustReserve(t, b, load.Request{ID: fmt.Sprint("a", i), PromptTokens: 128, PrefillTokens: 128, BlockSize: 16}))
	}
	if a, other := b.View(0, time.Now()), b.View(1, time.Now()); a.PrefillTokens != 8*128 || other.PrefillTokens != 0 {
		t.Errorf("8 uncached bookings on rank 0: got %v and %v queued tokens, want 1024 and 0", a.PrefillTokens, other.PrefillTokens)
	}
	for _, r := range held {
		r.Release()
	}
	wantIdle(t, b, 0)
}

func TestReleasedOnceOnEveryWayOut(t *testing.T) {
	ways := map[string]func(r *load.Reservation){
		"normal end":      func(r *load.Reservation) { r.PrefillDone(); r.Progress(40) },
		"early close":     func(r *load.Reservation) { r.PrefillDone() },
		"engine error":    func(*load.Reservation) {},
		"no output":       func(r *load.Reservation) { r.Progress(0) },
		"progress only":   func(r *load.Reservation) { r.Progress(5) },
		"nonsense counts": func(r *load.Reservation) { r.Progress(-1); r.Progress(math.MinInt) },
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b := newBook(t, 1)
			r := mustReserve(t, b, load.Request{ID: "a", PromptTokens: 20, PrefillTokens: 20, BlockSize: 16, ExpectedTokens: 100})
			way(r)
			wantOutcome(t, "first Release", r.Release(), load.Applied)
			wantOutcome(t, "second Release", r.Release(), load.Ended)
			wantOutcome(t, "Release by key", b.Release(load.Key{ID: "a"}), load.Ended)
			wantIdle(t, b, 0)
			if b.Live() != 0 {
				t.Errorf("%d live, want 0", b.Live())
			}
		})
	}
}

func TestBlockBoundaries(t *testing.T) {
	steps := []struct {
		name                        string
		blockSize, prompt, expected int
		outputs                     []int
		wantBlocks                  []float64
	}{
		{"block 16, prompt 10", 16, 10, 0, []int{6, 7, 39}, []float64{1, 2, 4}},
		{"block 8, prompt 12: two output blocks in 20 tokens", 8, 12, 0, []int{20}, []float64{4}},
		{"three blocks in one report", 8, 8, 0, []int{24}, []float64{4}},
		// One prompt block and one output block, both at weight 1 - 8/40.
		{"decay 0.8", 8, 8, 40, []int{8}, []float64{2 * 0.8}},
		{"decay is worked out when a block begins", 8, 8, 40, []int{1, 8, 9}, []float64{2 * 0.975, 2 * 0.975, 3 * 0.775}},
		{"decay ends at zero", 8, 8, 10, []int{40}, []float64{0}},
		{"an unknown expectation does not decay", 8, 8, -3, []int{40}, []float64{6}},
		{"no prompt", 8, 0, 0, []int{1, 8, 9}, []float64{1, 1, 2}},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			b := newBook(t, 1)
			r := mustReserve(t, b, load.Request{ID: "a", PromptTokens: s.prompt, BlockSize: s.blockSize, ExpectedTokens: s.expected})
			r.PrefillDone()
			for i, output := range s.outputs {
				wantOutcome(t, "Progress", r.Progress(output), load.Applied)
				if got := b.View(0, time.Now()).DecodeBlocks; math.Abs(got-s.wantBlocks[i]) > 1e-3 {
					t.Errorf("after %d output tokens: %v blocks, want %v", output, got, s.wantBlocks[i])
				}
			}
			r.Release()
			wantIdle(t, b, 0)
		})
	}
}

// A request has its blocks until it ends, also one that answers for longer than expected.
func TestBlocksAreUsedInFullUntilTheEnd(t *testing.T) {
	b := newBook(t, 1)
	prompt := []blockhash.Hash{11, 12, 13, 14}
	long := mustReserve(t, b, load.Request{ID: "long", PromptTokens: 18, BlockSize: 4, Hashes: prompt, ExpectedTokens: 8})
	short := mustReserve(t, b, load.Request{ID: "short", PromptTokens: 8, BlockSize: 4, Hashes: prompt[:2]})
	for _, step := range []struct {
		name string
		do   func()
		want int64
	}{
		{"a shared prefix of two blocks", func() {}, 5},
		{"half of the answer", func() { long.Progress(4) }, 6},
		{"twice the expected answer", func() { long.Progress(16) }, 9},
		{"the other one that used the prefix is gone", func() { short.Release() }, 9},
		{"the end", func() { long.Release() }, 0},
	} {
		if step.do(); b.View(0, time.Now()).UsedBlocks != step.want {
			t.Errorf("%s: %d blocks in use, want %d", step.name, b.View(0, time.Now()).UsedBlocks, step.want)
		}
	}
	wantIdle(t, b, 0)
}

func TestSharedBlocksKeepFullWeight(t *testing.T) {
	b := newBook(t, 1)
	prompt := []blockhash.Hash{11, 12, 13, 14}
	long := mustReserve(t, b, load.Request{ID: "long", PromptTokens: 16, BlockSize: 4, Hashes: prompt, ExpectedTokens: 8})
	short := mustReserve(t, b, load.Request{ID: "short", PromptTokens: 8, BlockSize: 4, Hashes: prompt[:2]})
	if got := b.View(0, time.Now()).DecodeBlocks; got != 4 {
		t.Errorf("a shared prefix of 2 blocks: %v blocks, want 4", got)
	}
	long.Progress(4) // half done: 2 exclusive prompt blocks and 1 output block count half, 2 shared ones fully
	if got := b.View(0, time.Now()).DecodeBlocks; got != 2+0.5*3 {
		t.Errorf("long request half done: %v blocks, want 3.5", got)
	}
	short.Release() // now the prefix belongs to the long request alone
	if got := b.View(0, time.Now()).DecodeBlocks; got != 0.5*5 {
		t.Errorf("short request gone: %v blocks, want 2.5", got)
	}
	long.Release()
	wantIdle(t, b, 0)
}

func TestChurnLeavesNothing(t *testing.T) {
	b := newBook(t, 3)
	var held []*load.Reservation
	for i := range 400 {
		r := mustReserve(t, b, load.Request{
			ID: fmt.Sprint("r", i), Slot: replica.Slot(i % 3), PromptTokens: 64, PrefillTokens: 32, BlockSize: 16,
			Hashes: []blockhash.Hash{1, 2, blockhash.Hash(100 + i%7)},
		})
		held = append(held, r)
		if i%3 == 0 {
			held[i/2].PrefillDone()
		}
		if i%5 == 0 {
			held[i/3].Release()
		}
	}
	wantOutcome(t, "unknown id", b.Progress(load.Key{ID: "nobody"}, 3), load.Unknown)
	if n := b.RemoveRank(2); n == 0 {
		t.Error("RemoveRank: no reservation was lost, want some")
	}
	for _, r := range held {
		r.Release()
	}
	for slot := range replica.Slot(3) {
		wantIdle(t, b, slot)
	}
	if b.Live() != 0 {
		t.Errorf("%d live, want 0", b.Live())
	}
}

func TestARemovedRankFreesItsLoad(t *testing.T) {
	b := newBook(t, 2)
	r := mustReserve(t, b, load.Request{ID: "a", PromptTokens: 32, PrefillTokens: 32, BlockSize: 16})
	if n := b.RemoveRank(0); n != 1 {
		t.Errorf("RemoveRank: %d lost, want 1", n)
	}
	if r.Slot() != replica.NoSlot {
		t.Errorf("slot %d, want none", r.Slot())
	}
	wantOutcome(t, "Progress on a lost reservation", r.Progress(3), load.Lost)
	if _, err := b.Reserve(load.Request{ID: "b"}); !errors.Is(err, load.ErrNoRank) {
		t.Errorf("Reserve on a removed rank: %v, want ErrNoRank", err)
	}
	b.AddRank(0) // the slot is used again, for another rank
	wantIdle(t, b, 0)
	moved := mustReserve(t, b, load.Request{ID: "a", Attempt: 1, Slot: 1, PromptTokens: 32, PrefillTokens: 32, BlockSize: 16})
	if moved != r || r.Slot() != 1 || r.Attempt() != 1 {
		t.Errorf("booked again: another reservation, or slot %d, attempt %d", r.Slot(), r.Attempt())
	}
	wantOutcome(t, "report of the old attempt", b.Progress(load.Key{ID: "a"}, 9), load.Stale)
	wantOutcome(t, "report of the new attempt", b.Progress(load.Key{ID: "a", Attempt: 1}, 9), load.Applied)
	wantOutcome(t, "Release", r.Release(), load.Applied)
	wantIdle(t, b, 0)
	wantIdle(t, b, 1)
}

func TestForgetLosesOnlyWhatWasBookedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t, 1)
		old := mustReserve(t, b, load.Request{ID: "old", PromptTokens: 5})
		time.Sleep(time.Second)
		restart := time.Now()
		time.Sleep(time.Second)
		young := mustReserve(t, b, load.Request{ID: "young", PromptTokens: 5})
		if n := b.Forget(0, restart); n != 1 {
			t.Errorf("Forget: %d lost, want 1", n)
		}
		wantOutcome(t, "booked before the restart", old.PrefillDone(), load.Lost)
		wantOutcome(t, "booked after the restart", young.PrefillDone(), load.Applied)
		if got := b.View(0, time.Now()); got.InFlight != 1 {
			t.Errorf("%d in flight, want 1", got.InFlight)
		}
	})
}

func TestLeasesEndOnTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t, 1)
		running(t, b)
		key := load.Key{ID: "leased"}
		mustReserve(t, b, load.Request{ID: "leased", PromptTokens: 10, PrefillTokens: 10, Lease: 5 * time.Second})
		stream := mustReserve(t, b, load.Request{ID: "stream", PromptTokens: 10, PrefillTokens: 10})
		for i := range 5 { // reports keep it alive
			time.Sleep(4 * time.Second)
			wantOutcome(t, "Progress", b.Progress(key, i+1), load.Applied)
		}
		time.Sleep(4 * time.Second)
		wantOutcome(t, "a repeated report", b.Progress(key, 5), load.Duplicate)
		time.Sleep(4 * time.Second)
		wantOutcome(t, "Renew, which the repeated report made possible", b.Renew(key), load.Applied)
		time.Sleep(7 * time.Second)
		wantOutcome(t, "report after the lease", b.Progress(key, 9), load.Ended)
		if got := b.View(0, time.Now()).InFlight; got != 1 {
			t.Errorf("%d in flight after the lease, want only the stream's", got)
		}
		time.Sleep(3 * time.Hour)
		wantOutcome(t, "a stream's reservation after three hours", stream.PrefillDone(), load.Applied)
		stream.Release()
		wantIdle(t, b, 0)
	})
}

func TestLeasesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t, 1)
		var told atomic.Int64
		b.OnExpired(func(load.Key) { told.Add(1) })
		running(t, b)
		mustReserve(t, b, load.Request{ID: "greedy", Lease: 1000 * time.Hour})
		mustReserve(t, b, load.Request{ID: "default", Lease: -1})
		time.Sleep(load.DefaultConfig().Lease + 2*time.Second)
		if _, ok := b.Find("", "default"); ok {
			t.Error("a default lease outlives Config.Lease")
		}
		time.Sleep(load.DefaultConfig().MaxLease)
		if _, ok := b.Find("", "greedy"); ok {
			t.Error("a lease outlives Config.MaxLease")
		}
		if n := told.Load(); n != 2 {
			t.Errorf("%d expired leases told, want 2", n)
		}
	})
}

func TestLateReportsDoNotResurrect(t *testing.T) {
	b := newBook(t, 2)
	first := load.Request{ID: "a", Attempt: 1, PromptTokens: 16, PrefillTokens: 16, BlockSize: 16}
	mustReserve(t, b, first)
	b.Release(load.Key{ID: "a", Attempt: 1})
	for name, got := range map[string]load.Outcome{
		"prefill": b.PrefillDone(load.Key{ID: "a", Attempt: 1}), "progress": b.Progress(load.Key{ID: "a", Attempt: 1}, 9),
		"older attempt": b.Progress(load.Key{ID: "a"}, 9), "release": b.Release(load.Key{ID: "a", Attempt: 1}),
	} {
		wantOutcome(t, name, got, load.Ended)
	}
	wantOutcome(t, "an attempt that never was", b.PrefillDone(load.Key{ID: "a", Attempt: 2}), load.Unknown)
	if _, err := b.Reserve(first); !errors.Is(err, load.ErrEnded) {
		t.Errorf("a delayed booking of an ended attempt: %v, want ErrEnded", err)
	}
	wantIdle(t, b, 0)
	next := first
	next.Attempt, next.Slot = 2, 1
	mustReserve(t, b, next).Release()
	wantIdle(t, b, 1)
}

func TestEachCallTwiceChangesNothing(t *testing.T) {
	b := newBook(t, 2)
	req := load.Request{ID: "a", PromptTokens: 40, PrefillTokens: 40, BlockSize: 16}
	r := mustReserve(t, b, req)
	again := req
	again.Slot = 1 // a repeated choice that would now go elsewhere
	if mustReserve(t, b, again) != r || r.Slot() != 0 {
		t.Error("a repeated booking made another reservation or moved it")
	}
	wantIdle(t, b, 1)
	key := load.Key{ID: "a"}
	calls := []struct {
		name string
		call func() load.Outcome
		want load.Outcome
	}{
		{"prefill done", func() load.Outcome { return b.PrefillDone(key) }, load.Duplicate},
		{"progress", func() load.Outcome { return b.Progress(key, 20) }, load.Duplicate},
		{"fewer tokens", func() load.Outcome { return b.Progress(key, 19) }, load.Stale},
		{"another attempt", func() load.Outcome { return b.Progress(load.Key{ID: "a", Attempt: 7}, 99) }, load.Unknown},
		{"another id", func() load.Outcome { return b.Release(load.Key{ID: "b"}) }, load.Unknown},
	}
	b.PrefillDone(key)
	b.Progress(key, 20)
	before := b.View(0, time.Now())
	for _, c := range calls {
		wantOutcome(t, c.name, c.call(), c.want)
		if got := b.View(0, time.Now()); got != before {
			t.Errorf("%s changed the load: %+v, was %+v", c.name, got, before)
		}
	}
}

func TestProgressBeforePrefillDoneImpliesIt(t *testing.T) {
	b := newBook(t, 1)
	r := mustReserve(t, b, load.Request{ID: "a", PromptTokens: 40, PrefillTokens: 40})
	wantOutcome(t, "Progress first", r.Progress(1), load.Applied)
	if got := b.View(0, time.Now()); got.Prefilling != 0 || got.PrefillTokens != 0 {
		t.Errorf("prefill still booked: %+v", got)
	}
	wantOutcome(t, "PrefillDone after it", r.PrefillDone(), load.Duplicate)
}

func TestPrefillDrainsFromTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t, 1)
		first := mustReserve(t, b, load.Request{ID: "first", PromptTokens: 400, PrefillTokens: 400, PrefillTime: 4 * time.Second})
		mustReserve(t, b, load.Request{ID: "second", PromptTokens: 100, PrefillTokens: 100, PrefillTime: time.Second})
		want := func(when string, tokens float64, left, overdue time.Duration) {
			t.Helper()
			got := b.View(0, time.Now())
			if got.PrefillTokens != tokens || got.PrefillTime != left || got.Overdue != overdue {
				t.Errorf("%s: %v tokens, %v, overdue %v; want %v, %v, %v", when, got.PrefillTokens, got.PrefillTime, got.Overdue, tokens, left, overdue)
			}
		}
		want("at first", 500, 5*time.Second, 0)
		time.Sleep(3 * time.Second)
		want("after 3 s", 200, 2*time.Second, 0)
		time.Sleep(3 * time.Second)
		want("the first is late, the second has not begun", 100, time.Second, 2*time.Second)
		first.PrefillDone()
		want("the second begins", 100, time.Second, 0)
		time.Sleep(500 * time.Millisecond)
		want("half of the second", 50, 500*time.Millisecond, 0)
	})
}

func TestUnstreamedPrefillEndsWhenPredicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t, 1)
		for i := range 3 {
			mustReserve(t, b, load.Request{ID: fmt.Sprint(i), PromptTokens: 10, PrefillTokens: 10, PrefillTime: time.Second, Unstreamed: true})
		}
		time.Sleep(2500 * time.Millisecond)
		got := b.View(0, time.Now())
		if got.Prefilling != 1 || got.PrefillTime != 500*time.Millisecond || got.InFlight != 3 {
			t.Errorf("after 2.5 s of 3 times 1 s: %+v", got)
		}
		time.Sleep(time.Minute)
		if got := b.View(0, time.Now()); got.Prefilling != 0 || got.PrefillTime != 0 || got.Overdue != 0 || got.InFlight != 3 {
			t.Errorf("after a minute: %+v", got)
		}
	})
}

// Engines prefill in order: a first token or an answer shows that the prefill of the unstreamed requests before it is over, and where
// only the predicted time says so, the load does, too.
func TestAnAnswerEndsThePrefillOfUnstreamedRequestsBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(t, 1)
		var all []*load.Reservation
		for i, unstreamed := range []bool{true, true, false, true, false} {
			all = append(all, mustReserve(t, b, load.Request{ID: fmt.Sprint(i), PromptTokens: 10, PrefillTokens: 10, PrefillTime: time.Second, Unstreamed: unstreamed}))
		}
		want := func(what string, prefilling, assumed int, left time.Duration) {
			t.Helper()
			if got := b.View(0, time.Now()); got.Prefilling != prefilling || got.Assumed != assumed || got.PrefillTime != left {
				t.Errorf("%s: %+v, want %d to prefill for %s, %d assumed", what, got, prefilling, left, assumed)
			}
		}
		time.Sleep(1500 * time.Millisecond)
		want("after 1.5 s", 4, 1, 3500*time.Millisecond)
		all[3].PrefillDone()
		want("the fourth one has an answer", 2, 0, 2*time.Second)
		all[4].PrefillDone()
		want("the fifth one has its first token", 1, 0, time.Second)
		all[0].Release()
		all[2].Release()
		want("one is left", 0, 0, 0)
		for _, r := range all {
			r.Release()
		}
		wantIdle(t, b, 0)
	})
}

func TestMovingFreesTheOldRank(t *testing.T) {
	b := newBook(t, 2)
	req := load.Request{ID: "a", PromptTokens: 64, PrefillTokens: 64, PrefillTime: time.Second, BlockSize: 16}
	r := mustReserve(t, b, req)
	r.Progress(3)
	req.Attempt, req.Slot = 1, 1
	if mustReserve(t, b, req) != r {
		t.Error("a move made another reservation")
	}
	wantIdle(t, b, 0)
	got := b.View(1, time.Now())
	if got.InFlight != 1 || got.Prefilling != 1 || got.OutputTokens != 0 || got.DecodeBlocks != 4 {
		t.Errorf("the new rank: %+v, want the request from its beginning", got)
	}
	wantOutcome(t, "Release", r.Release(), load.Applied)
	wantIdle(t, b, 1)
}

func TestTheBookIsBounded(t *testing.T) {
	config := load.DefaultConfig()
	config.MaxReservations, config.Remembered = 10, 128
	b := load.New(config, load.Params{})
	b.AddRank(0)
	for i := range 10 {
		mustReserve(t, b, load.Request{ID: fmt.Sprint("held", i)})
	}
	if _, err := b.Reserve(load.Request{ID: "one too many"}); !errors.Is(err, load.ErrFull) {
		t.Errorf("the eleventh of ten: %v, want ErrFull", err)
	}
	for i := range 10 {
		b.Release(load.Key{ID: fmt.Sprint("held", i)})
	}
	for i := range 5000 {
		mustReserve(t, b, load.Request{ID: fmt.Sprint("r", i)}).Release()
	}
	remembered := 0
	for i := range 5000 {
		if b.Renew(load.Key{ID: fmt.Sprint("r", i)}) == load.Ended {
			remembered++
		}
	}
	if remembered == 0 || remembered > 512 {
		t.Errorf("%d ended reservations remembered, want 1 to 512", remembered)
	}
}

func TestReserveRefusesWhatCannotBeBooked(t *testing.T) {
	b := newBook(t, 1)
	for name, req := range map[string]load.Request{
		"no id": {}, "long id": {ID: string(make([]byte, 257))}, "negative prompt": {ID: "a", PromptTokens: -1},
		"negative prefill": {ID: "a", PrefillTokens: -1},
	} {
		if _, err := b.Reserve(req); !errors.Is(err, load.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	// no more prefill than prompt
	mustReserve(t, b, load.Request{ID: "a", PromptTokens: 10, PrefillTokens: 99})
	if got := b.View(0, time.Now()).PrefillTokens; got != 10 {
		t.Errorf("%v prefill tokens of a prompt of 10, want 10", got)
	}
}
