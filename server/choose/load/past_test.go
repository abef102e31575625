package load_test

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
)

// A view with a time before the booking went round for ever when the first in line was unstreamed and
// had nothing to prefill.
func TestAViewFromBeforeTheBookingEnds(t *testing.T) {
	book := load.New(load.DefaultConfig(), load.Params{})
	book.AddRank(0)
	before := time.Now()
	time.Sleep(time.Millisecond)
	res, err := book.Reserve(load.Request{ID: "a", Slot: 0, Unstreamed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Release()
	seen := make(chan load.RankLoad, 1)
	go func() { seen <- book.View(0, before) }()
	select {
	case l := <-seen:
		if l.InFlight != 1 {
			t.Errorf("%+v", l)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the view does not end")
	}
}
