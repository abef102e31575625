package speed

import (
	"math"
	"testing"
	"time"
)

// Of four equal engines, eight times as slow as the guess, the three without a sample looked eight times as fast as the one that had one.
func TestAnEarlySampleHoldsForEquals(t *testing.T) {
	k := new(kind)
	ranks := []*Rank{k.newRank(), k.newRank(), k.newRank(), k.newRank()}
	now := time.Unix(1000, 0)
	prefilled := func(r *Rank, rate float64) {
		var e Entry
		r.Booked(&e, Work{Tokens: 4000}, now, Decodes{})
		now = now.Add(seconds(4000 / rate))
		r.FirstToken(&e, now, Decodes{})
		now = now.Add(time.Second)
	}
	prefilled(ranks[0], 1000)
	for i, r := range ranks[1:] {
		if ratio := ranks[0].Model().Token / r.Model().Token; math.Abs(math.Log(ratio)) > math.Log(1.3) {
			t.Errorf("rank %d without samples looks %.1f times as fast as its equal with one", i+1, ratio)
		}
	}
	// One sample is no more than that: the others teach what is true of them all.
	for range 4 {
		for _, r := range ranks[1:] {
			prefilled(r, 8000)
		}
	}
	for i, r := range ranks {
		within(t, "tokens per second of rank "+string(rune('0'+i)), 1/r.Model().Token, 8000, 0.4)
	}
	// An early sample that shows an engine as faster than the guess is no reason to send all requests to its equals.
	k = new(kind)
	fast, other := k.newRank(), k.newRank()
	prefilled(fast, 80000)
	within(t, "tokens per second of the equal of one fast engine", 1/other.Model().Token, 8000, 0.01)
}

// An engine that becomes five times as slow kept its rate for more than a minute.
func TestAChangeOfSpeedIsBelievedAfterThreeSamples(t *testing.T) {
	for _, factor := range []float64{5, 0.2} {
		k := new(kind)
		steady, turns := k.newRank(), k.newRank()
		e := newEngine(8000, 1)
		e.play(steady, 100, 1, documents(e.r))
		e = newEngine(8000, 2)
		e.play(turns, 100, 1, documents(e.r))
		now := e.now.Add(time.Second)
		for range 100 {
			turns.Stepped(0.012, 8, Decodes{Sequences: 10, Context: 20000}, now)
			now = now.Add(100 * time.Millisecond)
		}
		step := turns.Model().Step(10, 20000)
		for range 4 {
			var one Entry
			turns.Booked(&one, Work{Tokens: 4000}, now, Decodes{})
			now = now.Add(seconds(4000. / 8000 * factor))
			turns.FirstToken(&one, now, Decodes{})
			now = now.Add(time.Second)
		}
		within(t, "tokens per second", 1/turns.Model().Token, 8000/factor, 0.4)
		within(t, "steps, which nothing showed since", turns.Model().Step(10, 20000)/step, factor, 0.4)
		within(t, "tokens per second of the other", 1/steady.Model().Token, 8000, 0.2)
	}
}

// Steps that become longer count after three pieces of streams.
func TestAChangeOfStepsIsBelieved(t *testing.T) {
	r := new(kind).newRank()
	now := time.Unix(1000, 0)
	d := Decodes{Sequences: 20, Context: 40000}
	for range 100 {
		now = now.Add(time.Second)
		r.Stepped(0.012, 8, d, now)
	}
	for range 3 {
		now = now.Add(time.Second)
		r.Stepped(0.060, 8, d, now)
	}
	within(t, "step", r.Model().Step(20, 40000), 0.060, 0.3)
}

// Samples that are off by chance, to either side, change nothing.
func TestNoiseIsNoChange(t *testing.T) {
	var d drift
	now := time.Unix(1000, 0)
	for i := range 100 {
		if n := d.see([]float64{3, 2.5, 0.3, 1.1, 0.4, 0.3, 1}[i%7], now); n != 0 {
			t.Fatalf("sample %d shows a change", i)
		}
	}
	d = drift{}
	for i, want := range []int{0, 0, 3, 4} {
		if n := d.see(2, now); n != want {
			t.Errorf("sample %d of one side: %d show a change, want %d", i+1, n, want)
		}
	}
	d = drift{}
	for i, f := range []float64{2, 0.7, 2, 2, 1.2, 2, 2, 1} {
		if n := d.see(f, now); n != 0 {
			t.Errorf("sample %d, after ones to the other side and true ones: %d show a change", i+1, n)
		}
	}
	// One that is nearly off ends nothing and shows nothing.
	d = drift{}
	for i, want := range []int{0, 0, 0, 4} {
		if n := d.see([]float64{5, 5, 1.79, 5}[i], now); n != want {
			t.Errorf("sample %d of one side, the third one nearly off: %d show a change, want %d", i+1, n, want)
		}
	}
	for _, odd := range []float64{0, math.NaN(), math.Inf(1)} {
		d.see(odd, now) // it must not panic
	}
}

// A rank that became five times as slow, and gets little traffic for that, was taken for half as slow: its equals, which are as fast as they
// were, counted as two samples against its three.
func TestEqualsSayLittleOfARankThatChanged(t *testing.T) {
	k := new(kind)
	now := time.Unix(1000, 0)
	ranks := []*Rank{k.newRank(), k.newRank(), k.newRank(), k.newRank()}
	for i, r := range ranks {
		e := newEngine(8000, uint64(i))
		e.play(r, 60, 1, documents(e.r))
		now = e.now
	}
	turns := ranks[0]
	for i, tokens := range []float64{6000, 2400, 5000} {
		rate := 1600.
		if i == 0 {
			rate = 2800 // it turned while it computed this one
		}
		var one Entry
		now = now.Add(20 * time.Second)
		turns.Booked(&one, Work{Tokens: tokens}, now, Decodes{})
		now = now.Add(seconds(tokens / rate))
		turns.FirstToken(&one, now, Decodes{})
	}
	within(t, "tokens per second", 1/turns.Model().Token, 1600, 0.2)
}

// A rank that was slow for a minute, and has had no traffic since, is tried again by one request.
func TestARankThatWasSlowIsTriedAgain(t *testing.T) {
	k := new(kind)
	usual, slow := k.newRank(), k.newRank()
	e := newEngine(8000, 1)
	e.play(usual, 60, 1, documents(e.r))
	e = newEngine(1600, 2)
	e.play(slow, 60, 5, documents(e.r))
	now := e.now
	seems := func() float64 { return slow.Model().Token * 8000 }
	look := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(200 * time.Millisecond) {
			slow.Look(now)
			usual.Look(now)
		}
	}
	serve := func(rate float64) {
		var one Entry
		slow.Booked(&one, Work{Tokens: 4000}, now, Decodes{})
		if got := seems(); got < 3 && rate < 8000 {
			t.Errorf("with its request in flight the rank is tried by others, too: %.1f times as slow", got)
		}
		now = now.Add(seconds(4000 / rate))
		slow.FirstToken(&one, now, Decodes{})
	}
	look(50 * time.Second)
	if got := seems(); got < 4 {
		t.Fatalf("%.1f times as slow after less than a minute", got)
	}
	look(20 * time.Second)
	if got := seems(); got > 1.3 {
		t.Fatalf("%.1f times as slow after a minute without traffic", got)
	}
	serve(1600) // it still is
	if got := seems(); got < 4 {
		t.Errorf("%.1f times as slow after one more slow answer", got)
	}
	look(70 * time.Second)
	serve(8000)
	if got := seems(); got > 2.1 {
		t.Errorf("%.1f times as slow after a good answer", got)
	}
	look(time.Minute)
	serve(8000)
	serve(8000)
	if got := seems(); got > 1.3 {
		t.Errorf("%.1f times as slow after three good answers", got)
	}
}

// A prompt that has no first token after several times the time for all that was sent shows an engine as slow before it has one.
func TestWorkThatIsNotDoneShowsASlowEngine(t *testing.T) {
	r := new(kind).newRank()
	e := newEngine(8000, 1)
	e.play(r, 60, 1, documents(e.r))
	now := e.now.Add(time.Second)
	var one Entry
	r.Booked(&one, Work{Tokens: 8000}, now, Decodes{})
	r.Look(now.Add(1200 * time.Millisecond))
	within(t, "tokens per second in time", 1/r.Model().Token, 8000, 0.2)
	r.Look(now.Add(5 * time.Second))
	if got := 1 / r.Model().Token; got > 2500 {
		t.Errorf("%.0f tokens/s after five seconds for 8,000 tokens", got)
	}
	r.FirstToken(&one, now.Add(5100*time.Millisecond), Decodes{})
	r.Look(now.Add(6 * time.Second))
	if got := 1 / r.Model().Token; got > 2500 {
		t.Errorf("%.0f tokens/s after the late first token", got)
	}
	now = now.Add(7 * time.Second)
	r.Booked(&one, Work{Tokens: 8000}, now, Decodes{})
	now = now.Add(time.Second)
	r.FirstToken(&one, now, Decodes{})
	within(t, "tokens per second when it was late once", 1/r.Model().Token, 8000, 0.2)
}
