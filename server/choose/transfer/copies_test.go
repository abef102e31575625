package transfer_test

import (
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestOneCopyToARankAtATime(t *testing.T) {
	var c transfer.Copies
	var begun []*transfer.Copy
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			one := &transfer.Copy{From: replica.Slot(i), To: replica.Slot(100 + i%4)}
			if c.Begin(one) {
				mu.Lock()
				begun = append(begun, one)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(begun) != 4 || len(c.All()) != 4 {
		t.Fatalf("%d copies began to 4 ranks, %d are listed", len(begun), len(c.All()))
	}
	for range 2 {
		c.End(begun[0], 7)
	}
	if c.To(begun[0].To) != nil || len(c.All()) != 3 || begun[0].Ended() != 7 {
		t.Errorf("after the end of one: %d copies, ended at %d", len(c.All()), begun[0].Ended())
	}
	if !c.Begin(&transfer.Copy{To: begun[0].To}) {
		t.Error("no copy begins to a rank whose copy has ended")
	}
}

func TestCopiesAreBounded(t *testing.T) {
	var c transfer.Copies
	n := 0
	for slot := range 10_000 {
		if c.Begin(&transfer.Copy{To: replica.Slot(slot)}) {
			n++
		}
	}
	if n != 256 {
		t.Errorf("%d copies are under way", n)
	}
}

func TestCopyIsOfPromptsThatBeginWithIt(t *testing.T) {
	c := transfer.Copy{Last: 3, Blocks: 3, BlockSize: 16}
	for _, tt := range []struct {
		keys []blockhash.Hash
		want bool
	}{{[]blockhash.Hash{1, 2, 3, 4}, true}, {[]blockhash.Hash{1, 2, 3}, true}, {[]blockhash.Hash{1, 2}, false}, {[]blockhash.Hash{1, 2, 5, 3}, false}, {nil, false}} {
		if got := c.Begins(tt.keys); got != tt.want {
			t.Errorf("%v: %v", tt.keys, got)
		}
	}
	if c.Tokens() != 48 {
		t.Errorf("%d tokens", c.Tokens())
	}
}

func TestNothingIsExpectedOfACopyThatIsFarTooLate(t *testing.T) {
	c := transfer.Copy{Begun: int64(time.Second), Due: int64(2 * time.Second)}
	for _, tt := range []struct {
		at       time.Duration
		left     float64
		expected bool
	}{{1500 * time.Millisecond, 0.5, true}, {2 * time.Second, 0, true}, {3400 * time.Millisecond, 0, true}, {3600 * time.Millisecond, 0, false}} {
		if left, expected := c.Remaining(int64(tt.at)); left != tt.left || expected != tt.expected {
			t.Errorf("at %v: %v, %v", tt.at, left, expected)
		}
	}
}

func TestRankRestsAfterAFailure(t *testing.T) {
	var c transfer.Copies
	c.Rest(1, 0)
	c.Rest(2, int64(20*time.Second))
	if !c.Rests(1, int64(29*time.Second)) || !c.Rests(2, int64(49*time.Second)) || c.Rests(3, 0) {
		t.Error("a rank does not rest, or another one does")
	}
	if c.Rests(1, int64(31*time.Second)) {
		t.Error("a rank rests for good")
	}
	if !c.AnyRests() || new(transfer.Copies).AnyRests() {
		t.Error("AnyRests")
	}
}
