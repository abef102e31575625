package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Everything at once, on few ids and ranks: with -race this finds what is not guarded, and at the
// end nothing may be left.
func TestConcurrentLivesLeaveNothing(t *testing.T) {
	const slots, workers, steps = 4, 8, 3000
	b := New(DefaultConfig(), Params{})
	for slot := range replica.Slot(slots) {
		b.AddRank(slot)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all, sweeper sync.WaitGroup
	sweeper.Go(func() {
		for ctx.Err() == nil { // a sweep far in the future ends every lease there is
			b.sweep(b.now() + int64(time.Hour))
			time.Sleep(time.Millisecond)
		}
	})
	for worker := range uint64(workers) {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(worker, 7))
			for range steps {
				randomCall(t, b, dice, slots)
			}
		})
	}
	all.Wait()
	cancel()
	sweeper.Wait()
	for i := range 12 {
		if r, ok := b.Find("", fmt.Sprint("r", i)); ok {
			if out := r.Release(); out != Applied {
				t.Errorf("release of a live reservation: %s", out)
			}
		}
	}
	mustBeEmpty(t, b)
	for slot := range replica.Slot(slots) {
		if v := b.View(slot, time.Now()); v.InFlight != 0 || v.DecodeBlocks != 0 || v.UsedBlocks != 0 || v.PrefillTokens != 0 || v.OutputTokens != 0 {
			t.Errorf("rank %d: %+v", slot, v)
		}
	}
}

func randomCall(t *testing.T, b *Book, dice *rand.Rand, slots int) {
	key := Key{"", fmt.Sprint("r", dice.IntN(12)), uint32(dice.IntN(3))}
	slot := replica.Slot(dice.IntN(slots))
	switch n := dice.IntN(100); {
	case n < 40:
		req := randomRequest(dice, slots)
		req.Attempt = dice.Uint32N(1 << 20) // mostly above what ended
		r, err := b.ReserveIf(b.View(req.Slot, time.Now()).Version, req)
		if err == nil && dice.IntN(2) == 0 {
			r.Progress(dice.IntN(50))
			r.Release()
		}
	case n < 60:
		if r, ok := b.Find("", key.ID); ok {
			r.Progress(dice.IntN(50))
			r.PrefillDone()
			_ = r.Slot() // read beside moves, for the race detector
		}
	case n < 80:
		if r, ok := b.Find("", key.ID); ok {
			r.Release()
		}
	case n < 90:
		if v := b.View(slot, time.Now()); v.InFlight < 0 || v.DecodeBlocks < 0 || v.UsedBlocks < 0 || v.PrefillTokens < 0 || v.PrefillTime < 0 || v.Prefilling > v.InFlight {
			t.Errorf("rank %d: impossible load %+v", slot, v)
		}
	case n < 97:
		b.Release(key)
		b.Renew(key)
	case n < 98:
		b.Forget(slot, time.Now())
	default:
		b.RemoveRank(slot)
		b.AddRank(slot)
	}
}

// ReserveIf is what makes choosing and booking one step: of many who saw the same load, one books.
func TestReserveIfLetsOneOfManyIn(t *testing.T) {
	b := New(DefaultConfig(), Params{})
	for slot := range replica.Slot(4) {
		b.AddRank(slot)
	}
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 25 {
				req := Request{ID: fmt.Sprint(worker, "/", i), PromptTokens: 100, PrefillTokens: 100}
				for {
					version := uint64(0)
					fewest := 1 << 30
					for slot := range replica.Slot(4) { // everybody likes the least loaded rank best
						if v := b.View(slot, time.Now()); v.InFlight < fewest {
							req.Slot, version, fewest = slot, v.Version, v.InFlight
						}
					}
					if _, err := b.ReserveIf(version, req); err == nil {
						break
					}
				}
			}
		})
	}
	all.Wait()
	for slot := range replica.Slot(4) { // 200 identical prompts spread evenly instead of herding
		if v := b.View(slot, time.Now()); v.InFlight != 50 {
			t.Errorf("rank %d has %d of 200 requests, want 50", slot, v.InFlight)
		}
	}
}

// Between the moment when a fresh reservation can be found and the one when its booking fails, Find hands it out.
func TestAReservationThatCouldNotBeBookedAnswersEveryCall(t *testing.T) {
	b := New(DefaultConfig(), Params{})
	b.AddRank(0)
	req := Request{ID: "r", Attempt: 1}
	sh, hash := b.shard(req.Tenant, req.ID)
	r, fresh, err := b.claim(sh, hash, &req)
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	if _, err := b.settle(r, fresh, b.rank(0), &req, b.View(0, time.Now()).Version+1); !errors.Is(err, ErrConflict) {
		t.Fatalf("settle: %v, want a conflict", err)
	}
	r.mu.Unlock()
	if got, ok := b.Find("", "r"); !ok || got != r {
		t.Fatal("the reservation is not found before it is buried")
	}
	if slot := r.Slot(); slot != replica.NoSlot {
		t.Errorf("slot %d, want none", slot)
	}
	if r.Suspend() {
		t.Error("an unbooked reservation was suspended")
	}
	for name, call := range map[string]func() Outcome{
		"prefill done": r.PrefillDone, "progress": func() Outcome { return r.Progress(3) }, "renew": r.Renew, "release": r.Release,
	} {
		if out := call(); out != Ended {
			t.Errorf("%s: %v, want %v", name, out, Ended)
		}
	}
}
