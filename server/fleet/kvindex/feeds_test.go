package kvindex_test

import (
	"bytes"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// feeds are feeds that only have positions.
type feeds struct {
	at     map[replica.Slot]string
	answer kvindex.Continued

	mu     sync.Mutex // Load continues several ranks at once
	given  map[replica.Slot]string
	larger []bool
}

func (f *feeds) Still(slot replica.Slot, do func([]byte)) {
	if p, ok := f.at[slot]; ok {
		do([]byte(p))
		return
	}
	do(nil)
}

func (f *feeds) Continue(slot replica.Slot, position []byte, larger bool, fill func()) kvindex.Continued {
	f.mu.Lock()
	f.given[slot] = string(position)
	f.larger = append(f.larger, larger)
	f.mu.Unlock()
	if f.answer == kvindex.ContinuedThere {
		fill()
	}
	return f.answer
}

// followed returns an index of two ranks with feeds.
func followed(t *testing.T, f *feeds, fill bool) *kvindex.Index {
	t.Helper()
	f.given = map[replica.Slot]string{}
	ix := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{Feeds: f})
	for slot := range replica.Slot(2) {
		if err := ix.AddRank(slot, kvindex.RankInfo{Rank: replica.Rank{Replica: "r", Index: int(slot)}}); err != nil {
			t.Fatal(err)
		}
		ix.SetState(slot, kvblock.FeedDegraded)
		if fill {
			ix.Store(slot, stored(1, 30))
			ix.Store(slot, stored(1, 30)) // two copies
		}
	}
	return ix
}

func TestAFeedsPositionComesWithItsRank(t *testing.T) {
	from := followed(t, &feeds{at: map[replica.Slot]string{0: "at 7"}}, true)
	file := write(t, from)
	f := &feeds{answer: kvindex.ContinuedThere}
	ix := followed(t, f, false)
	ix.Store(0, stored(9, 3))
	l, err := ix.Load(bytes.NewReader(file))
	if err != nil || l.Ranks != 2 || l.Blocks != 60 {
		t.Fatalf("Load() = %+v, %v", l, err)
	}
	if want := (map[replica.Slot]string{0: "at 7"}); !maps.Equal(f.given, want) || !slices.Equal(f.larger, []bool{true}) {
		t.Errorf("positions %v (larger %v), want %v", f.given, f.larger, want)
	}
	expect(t, ix, chain(tokens(9, 3))) // replaced
	expect(t, ix, chain(tokens(1, 30)), kvindex.Overlap{GPU: 30}, kvindex.Overlap{Slot: 1, GPU: 30})
	// With a position the copies count, and nothing is a guess; without one, all is.
	for slot := range replica.Slot(2) {
		ix.Remove(slot, &kvblock.Removed{Hashes: stored(1, 30).Hashes[29:]})
		ix.SetState(slot, kvblock.FeedExact)
	}
	expect(t, ix, chain(tokens(1, 30)), kvindex.Overlap{GPU: 30})
	// Lost events make guesses of them.
	ix.Doubt(0)
	ix.Store(0, stored(1, 5))
	expect(t, ix, chain(tokens(1, 30)), kvindex.Overlap{GPU: 30})
	ix.SetState(0, kvblock.FeedExact)
	expect(t, ix, chain(tokens(1, 30)), kvindex.Overlap{GPU: 5})
}

func TestAFeedThatKnowsBetterKeepsItsRank(t *testing.T) {
	at := map[replica.Slot]string{0: "a", 1: "b"}
	file := write(t, followed(t, &feeds{at: at}, true))
	ix := followed(t, &feeds{answer: kvindex.ContinuedHere}, false)
	ix.Store(0, stored(9, 3))
	if l, err := ix.Load(bytes.NewReader(file)); err != nil || l.Ranks != 0 || l.Skipped != 2 {
		t.Fatalf("Load() = %+v, %v", l, err)
	}
	if s := ix.Stats(); s.Blocks != 3 {
		t.Errorf("%d blocks, want the rank's own 3", s.Blocks)
	}
}

func TestARankWithAPositionWaitsForItsFeed(t *testing.T) {
	at := map[replica.Slot]string{0: "a", 1: "b"}
	file := write(t, followed(t, &feeds{at: at}, true))
	f := &feeds{answer: kvindex.ContinuedNone}
	ix := followed(t, f, false)
	for range 2 { // a second snapshot takes the place of the first
		if l, err := ix.Load(bytes.NewReader(file)); err != nil || l.Parked != 2 {
			t.Fatalf("Load() = %+v, %v", l, err)
		}
	}
	// A snapshot of what waits has it still.
	again := write(t, ix)
	ix.Claim(7)
	ix.RemoveRank(0)
	if err := ix.AddRank(0, kvindex.RankInfo{Rank: replica.Rank{Replica: "r"}}); err != nil {
		t.Fatal(err)
	}
	f.answer = kvindex.ContinuedThere
	ix.Claim(0)
	expect(t, ix, chain(tokens(1, 30)), kvindex.Overlap{GPU: 30})
	ix.Claim(0)
	if s := ix.Stats(); s.Parked != 1 || s.Blocks != 60 {
		t.Errorf("%d parked, %d blocks; want the other rank's 30 parked", s.Parked, s.Blocks)
	}
	g := &feeds{answer: kvindex.ContinuedThere}
	other := followed(t, g, false)
	if _, err := other.Load(bytes.NewReader(again)); err != nil || g.given[1] != "b" {
		t.Errorf("from a snapshot of a rank that waits: %v, positions %v", err, g.given)
	}
	// One replica alone.
	var b bytes.Buffer
	if err := other.SnapshotOf(&b, func(id replica.ID, _ kvblock.FeedState) bool { return id == "none" }); err != nil {
		t.Fatal(err)
	}
	if l, err := followed(t, f, false).Load(&b); err != nil || l.Ranks != 0 {
		t.Errorf("a snapshot of no replica: %+v, %v", l, err)
	}
}

func TestSnapshotsOfTheFormerFormatAreRead(t *testing.T) {
	file := write(t, named(t, 2, true)) // without feeds: no positions
	copy(file, "KVPIDX01")
	if l, err := named(t, 2, false).Load(bytes.NewReader(file)); err != nil || l.Ranks != 2 {
		t.Errorf("Load() = %+v, %v", l, err)
	}
}
