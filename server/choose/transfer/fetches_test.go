package transfer

import (
	"math"
	"testing"
	"time"
)

// fetching is a rank whose engine reports every second.
type fetching struct {
	*Fetches
	now   time.Time
	total uint64
}

func newFetching() *fetching {
	f := &fetching{Fetches: NewFetches(), now: time.Unix(1000, 0)}
	f.report(false)
	return f
}

func (f *fetching) report(others bool) {
	f.now = f.now.Add(time.Second)
	f.Counted(f.total, f.now, others)
}

// request has tokens to fetch, of which the engine fetches a part.
func (f *fetching) request(tokens, fetched int) {
	f.Expect(tokens)
	f.total += uint64(fetched)
}

func TestTheShareIsOfWhatTheEngineCounts(t *testing.T) {
	for name, tt := range map[string]struct{ fetched, low, high float64 }{
		"all": {1, 1, 1}, "three quarters": {0.75, 0.74, 0.8}, "more than expected": {1.5, 1, 1},
	} {
		f := newFetching()
		if f.Share() != 1 || f.Seen() != 0 {
			t.Errorf("%s: at first %v of %d", name, f.Share(), f.Seen())
		}
		for range 40 {
			f.request(3000, int(tt.fetched*3000))
			f.report(false)
		}
		if got := f.Share(); got < tt.low || got > tt.high || f.Seen() < 30 || f.Doubted(f.now) {
			t.Errorf("%s: %v after %d settlements, doubted %t", name, got, f.Seen(), f.Doubted(f.now))
		}
	}
}

// The engine counts some tokens before their request is seen to have them here, and some after.
func TestReportsBetweenTheCountAndTheFirstTokenDoNoHarm(t *testing.T) {
	f := newFetching()
	for i := range 60 {
		switch i % 3 {
		case 0: // counted in this report, seen in the next
			f.total += 4000
			f.report(false)
			f.Expect(4000)
		case 1: // the other way round
			f.Expect(4000)
			f.report(false)
			f.total += 4000
		default:
			f.request(4000, 4000)
		}
		f.report(false)
		if f.Share() < 0.7 || f.Doubted(f.now) {
			t.Fatalf("request %d: the share is %v", i, f.Share())
		}
	}
}

func TestARankThatFetchesNothingIsDoubtedForAWhile(t *testing.T) {
	f := newFetching()
	n := 0
	for ; !f.Doubted(f.now) && n < 20; n++ {
		f.request(3000, 1)
		f.report(false)
	}
	if n > 6 {
		t.Errorf("it takes %d requests", n)
	}
	if share := f.Share(); share >= leastFetched {
		t.Errorf("the share is %v", share)
	}
	if f.Doubted(f.now.Add(doubtTime)) {
		t.Error("it is doubted for good")
	}
	f.total = 0
	f.report(false)
	if f.Doubted(f.now) || f.Share() != 1 {
		t.Errorf("a new process of the engine is doubted: %t, %v", f.Doubted(f.now), f.Share())
	}
}

func TestSmallAmountsAddUp(t *testing.T) {
	f := newFetching()
	for range 200 {
		f.request(100, 25)
		f.report(false)
	}
	if f.Seen() == 0 {
		t.Fatal("nothing was settled")
	}
	if share := f.Share(); share > 0.95 && !f.Doubted(f.now) {
		t.Errorf("the share is %v where a quarter is fetched", share)
	}
}

func TestSomeReportsSettleNothing(t *testing.T) {
	for name, disturb := range map[string]func(f *fetching){
		"requests of others":      func(f *fetching) { f.report(true) },
		"a restart of the engine": func(f *fetching) { f.total /= 2; f.report(false) },
	} {
		f := newFetching()
		f.total = 50_000
		f.report(false)
		for range 5 {
			f.request(9000, 0)
			disturb(f)
		}
		if f.Seen() != 0 || f.Share() != 1 {
			t.Errorf("%s: %v after %d settlements", name, f.Share(), f.Seen())
		}
	}
	f := newFetching()
	f.request(3000, 0)
	for range 9 { // the same report
		f.Counted(f.total, f.now, false)
	}
	if f.Seen() != 0 || math.IsNaN(f.Share()) {
		t.Errorf("the same report counts %d times", f.Seen())
	}
}
