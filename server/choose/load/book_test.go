package load_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// newBook returns a book with the ranks 0 to ranks-1.
func newBook(t testing.TB, ranks int) *load.Book {
	t.Helper()
	b := load.New(load.DefaultConfig(), load.Params{})
	for slot := range ranks {
		b.AddRank(replica.Slot(slot))
	}
	return b
}

func mustReserve(t testing.TB, b *load.Book, req load.Request) *load.Reservation {
	t.Helper()
	r, err := b.Reserve(req)
	if err != nil {
		t.Fatalf("Reserve(%+v): %v", req, err)
	}
	return r
}

func wantOutcome(t testing.TB, what string, got, want load.Outcome) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

func TestALifeFromReserveToRelease(t *testing.T) {
	b := newBook(t, 1)
	r := mustReserve(t, b, load.Request{ID: "a", PromptTokens: 100, PrefillTokens: 60, PrefillTime: 2 * time.Second, BlockSize: 16})
	now := time.Now()
	got := b.View(0, now)
	if got.InFlight != 1 || got.Prefilling != 1 || got.DecodeBlocks != 7 || got.ContextTokens != 100 {
		t.Errorf("after Reserve: %+v", got)
	}
	if got.PrefillTokens <= 59 || got.PrefillTokens > 60 || got.PrefillTime <= time.Second {
		t.Errorf("after Reserve: prefill %v tokens, %v, want nearly 60 and 2s", got.PrefillTokens, got.PrefillTime)
	}
	wantOutcome(t, "first PrefillDone", r.PrefillDone(), load.Applied)
	wantOutcome(t, "second PrefillDone", r.PrefillDone(), load.Duplicate)
	wantOutcome(t, "Progress", r.Progress(13), load.Applied)
	got = b.View(0, now)
	if got.Prefilling != 0 || got.PrefillTokens != 0 || got.DecodeBlocks != 8 || got.OutputTokens != 13 || got.ContextTokens != 113 {
		t.Errorf("after Progress(13): %+v", got)
	}
	wantOutcome(t, "Release", r.Release(), load.Applied)
	wantOutcome(t, "second Release", r.Release(), load.Ended)
	if got := b.View(0, now); got != (load.RankLoad{Version: 1}) {
		t.Errorf("after Release: %+v, want nothing booked", got)
	}
}

func TestReserveIfSeesOtherBookings(t *testing.T) {
	b := newBook(t, 2)
	seen := b.View(0, time.Now()).Version
	r, err := b.ReserveIf(seen, load.Request{ID: "a", Slot: 0})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ReserveIf(seen, load.Request{ID: "b", Slot: 0}); !errors.Is(err, load.ErrConflict) {
		t.Errorf("second booking at the same version: %v, want ErrConflict", err)
	}
	if _, ok := b.Find("", "b"); ok || b.Live() != 1 {
		t.Errorf("the refused booking left something: %d live", b.Live())
	}
	r.Release()
	if _, err := b.ReserveIf(seen+1, load.Request{ID: "b", Slot: 0}); err != nil {
		t.Errorf("a release changed the version: %v", err)
	}
}
