package conduct

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// bench is a fleet whose ranks decode at given speeds, in virtual time.
type bench struct {
	fleet Fleet
	now   time.Time
	ranks []*Rank
}

func newBench(n int) *bench {
	b := &bench{now: time.Unix(1_000_000, 0)}
	for range n {
		b.ranks = append(b.ranks, b.fleet.Add("kind", "model"))
	}
	return b
}

func (b *bench) judge() []Change {
	for _, r := range b.ranks {
		r.Expect(1, 0.01, 2048, b.now)
	}
	return b.fleet.Judge(b.now)
}

// run plays streams for the time d: each rank has so many at once, each of length tokens (0: endless), one per period (0: no streams).
func (b *bench) run(d time.Duration, streams, length int, periods ...time.Duration) {
	type open struct {
		s     *Stream
		since time.Time
		rank  int
	}
	var all []open
	start := func(rank int) open {
		s := &Stream{}
		b.ranks[rank].Enter(s, Work{Uncached: 100}, b.now)
		s.Begin(b.now)
		return open{s, b.now, rank}
	}
	for rank, period := range periods {
		for range streams * min(1, int(period)) {
			all = append(all, start(rank))
		}
	}
	end := b.now.Add(d)
	for b.now.Before(end) {
		b.now = b.now.Add(50 * time.Millisecond)
		for i, o := range all {
			n := 1 + int(b.now.Sub(o.since)/periods[o.rank])
			if length > 0 && n >= length {
				o.s.End(b.now, length, true)
				b.ranks[o.rank].Answered(length, 0)
				all[i] = start(o.rank)
				continue
			}
			o.s.Progress(n / 8 * 8)
		}
		b.judge()
	}
	for _, o := range all {
		o.s.End(b.now, 0, false)
	}
}

func (b *bench) suspected() (list []Suspicion) {
	for _, r := range b.ranks {
		list = append(list, r.About().Suspicions)
	}
	return list
}

const ms = time.Millisecond

func TestWhoIsSlow(t *testing.T) {
	for _, tt := range []struct {
		name    string
		streams int
		length  int
		periods []time.Duration
		want    []Suspicion
	}{
		{"equals", 5, 200, []time.Duration{20 * ms, 21 * ms, 19 * ms, 20 * ms}, []Suspicion{0, 0, 0, 0}},
		{"one token per second", 5, 200, []time.Duration{time.Second, 20 * ms, 20 * ms, 20 * ms}, []Suspicion{Slow, 0, 0, 0}},
		{"six times slower", 5, 200, []time.Duration{120 * ms, 20 * ms, 20 * ms, 20 * ms}, []Suspicion{Slow, 0, 0, 0}},
		{"twice as slow, as other hardware is", 5, 200, []time.Duration{40 * ms, 20 * ms, 20 * ms, 20 * ms}, []Suspicion{0, 0, 0, 0}},
		{"much faster, as with speculation", 5, 200, []time.Duration{4 * ms, 20 * ms, 20 * ms, 20 * ms}, []Suspicion{0, 0, 0, 0}},
		{"a rank alone", 5, 200, []time.Duration{time.Second}, []Suspicion{0}},
		{"two, one of them slow", 5, 200, []time.Duration{time.Second, 20 * ms}, []Suspicion{Slow, 0}},
		{"two of four slow", 5, 200, []time.Duration{time.Second, time.Second, 20 * ms, 20 * ms}, []Suspicion{Slow, Slow, 0, 0}},
		{"all equally slow", 5, 200, []time.Duration{time.Second, time.Second, time.Second}, []Suspicion{0, 0, 0}},
		{"too few streams to say", 2, 0, []time.Duration{time.Second, 20 * ms, 20 * ms}, []Suspicion{0, 0, 0}},
		{"very short answers", 5, 3, []time.Duration{60 * ms, 20 * ms, 20 * ms}, []Suspicion{0, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(len(tt.periods))
			b.run(10*time.Second, tt.streams, tt.length, tt.periods...)
			if got := b.suspected(); !slices.Equal(got, tt.want) {
				t.Errorf("suspected %v, want %v", got, tt.want)
			}
		})
	}
}

// A rank is noticed by the streams that run: none of them has to end.
func TestARankIsNoticedWithinSeconds(t *testing.T) {
	b := newBench(4)
	b.run(2*time.Second, 5, 0, time.Second, 20*ms, 20*ms, 20*ms)
	if got := b.suspected(); got[0] != Slow {
		t.Errorf("after two seconds of one token each: %v", got)
	}
	about := b.ranks[0].About()
	if about.Slowness < 5 || b.ranks[1].About().Slowness > 1.5 {
		t.Errorf("slowness %.1f and %.1f", about.Slowness, b.ranks[1].About().Slowness)
	}
	if few, many := b.ranks[0].Drag(10, b.now), b.ranks[0].Drag(100, b.now); few < 100 || many < few || b.ranks[1].Drag(100, b.now) != 0 {
		t.Errorf("a drag of %.2f s for 10 tokens and %.2f s for 100", few, many)
	}
}

// A rank that is slow and not broken costs what its tokens take longer.
func TestTheDragIsTheTimeThatTokensTakeLonger(t *testing.T) {
	b := newBench(4)
	b.run(5*time.Second, 5, 0, 100*ms, 20*ms, 20*ms, 20*ms)
	for _, n := range []float64{10, 100} {
		if got, want := b.ranks[0].Drag(n, b.now), n*0.1*(1-fair/5); got < 0.7*want || got > 1.1*want {
			t.Errorf("a drag of %.2f s for %v tokens, want %.2f", got, n, want)
		}
	}
}

// A prefill slows the decodes next to it down: that is no fault of the rank's.
func TestDecodesNextToPrefillsAreNotSlow(t *testing.T) {
	b := newBench(3)
	waiting := &Stream{}
	b.judge()
	b.ranks[0].Enter(waiting, Work{Uncached: 100_000}, b.now) // full steps all the time: 21 times as long
	b.run(10*time.Second, 5, 0, 420*ms, 20*ms, 20*ms)
	if got := b.suspected(); got[0] != 0 {
		t.Errorf("a rank that prefills all the time is held to be %v", got[0])
	}
	// A model that knows nothing of prefills must not condemn it either.
	b = newBench(3)
	b.judge()
	for i := 1; i < 3; i++ {
		b.ranks[i].Enter(&Stream{}, Work{Uncached: 100_000}, b.now)
	}
	b.run(10*time.Second, 5, 0, 100*ms, 100*ms, 100*ms) // the prefills of the others cost less than predicted
	if got := b.suspected(); got[0] != 0 {
		t.Errorf("a rank as fast as its equals, which prefill, is held to be %v", got[0])
	}
}

// The time that a client takes to read is not the rank's.
func TestSlowClientsAreNotTheRanksFault(t *testing.T) {
	b := newBench(3)
	b.run(3*time.Second, 5, 0, 20*ms, 20*ms, 20*ms)
	var slow []*Stream
	for range 10 {
		s := &Stream{}
		b.ranks[0].Enter(s, Work{}, b.now)
		s.Begin(b.now)
		s.Progress(8)
		s.Writing(true)
		slow = append(slow, s)
	}
	b.run(10*time.Second, 5, 0, 20*ms, 20*ms, 20*ms)
	for _, s := range slow {
		s.End(b.now, 9, true)
	}
	b.judge()
	if got := b.suspected(); got[0] != 0 {
		t.Errorf("a rank whose clients do not read is held to be %v", got[0])
	}
}

// Of a stream whose pieces are no tokens nothing is concluded.
func TestUnevenStreamsAreNoEvidence(t *testing.T) {
	b := newBench(3)
	var list []*Stream
	for range 10 {
		s := &Stream{}
		b.ranks[0].Enter(s, Work{Uneven: true}, b.now)
		s.Begin(b.now)
		list = append(list, s)
	}
	b.run(10*time.Second, 1, 100, 20*ms, 20*ms, 20*ms)
	for _, s := range list {
		s.End(b.now, 2, false)
	}
	b.judge()
	if got := b.suspected(); got[0] != 0 {
		t.Errorf("held to be %v", got[0])
	}
}

func TestProbesClearARankThatIsFastAgain(t *testing.T) {
	b := newBench(4)
	b.run(5*time.Second, 5, 0, time.Second, 20*ms, 20*ms, 20*ms)
	r := b.ranks[0]
	if r.Drag(10, b.now) == 0 {
		t.Fatal("the rank is not avoided")
	}
	probe := func(period time.Duration) bool {
		for range 1000 {
			if r.Drag(10, b.now) == 0 {
				break
			}
			b.now = b.now.Add(time.Second)
			b.judge()
		}
		b.run(2*time.Second, 5, 0, 0, 20*ms, 20*ms, 20*ms)
		s := &Stream{}
		r.Enter(s, Work{}, b.now)
		if r.Drag(10, b.now) == 0 {
			t.Fatal("a second request is a probe at the same time")
		}
		s.Begin(b.now)
		for n := 1; n <= 50; n++ {
			b.now = b.now.Add(period)
			s.Progress(n / 8 * 8)
			b.judge()
		}
		s.End(b.now, 50, true)
		b.judge()
		return r.About().Suspicions&Slow != 0
	}
	b.now = b.now.Add(window) // what was seen before is old
	before := b.now
	if b.ranks[1].About().Suspicions != 0 || !probe(time.Second) {
		t.Fatal("a slow probe clears the rank")
	}
	if !probe(time.Second) || b.now.Sub(before) < 2*firstProbe {
		t.Errorf("slow probes come after %s", b.now.Sub(before))
	}
	if !probe(20 * ms) {
		t.Error("one good probe is enough")
	}
	if probe(20*ms) || r.Drag(10, b.now) != 0 {
		t.Errorf("two good probes leave it %v", r.About().Suspicions)
	}
}

func TestEmptyAnswersCount(t *testing.T) {
	b := newBench(2)
	r := b.ranks[0]
	for range 20 {
		r.Answered(50, 0)
	}
	r.Emptied(b.now)
	if b.judge(); r.About().Suspicions != 0 {
		t.Error("one empty answer of twenty is enough")
	}
	r.Emptied(b.now)
	r.Emptied(b.now)
	if b.judge(); r.About().Suspicions != Empty || r.Drag(1, b.now) < 10 {
		t.Errorf("three empty answers in succession: %v, drag %.1f s", r.About().Suspicions, r.Drag(1, b.now))
	}
	for range filled {
		r.Answered(50, 0)
	}
	if b.judge(); r.About().Suspicions != 0 {
		t.Errorf("after answers with content it is still %v", r.About().Suspicions)
	}
}

// Answers of one token are suspicious only where equals give longer ones.
func TestShortAnswersAreComparedWithThoseOfEquals(t *testing.T) {
	for _, tt := range []struct {
		name       string
		own, other int
		limit      int
		want       Suspicion
	}{
		{"equals give longer ones", 1, 80, 0, Empty},
		{"so do equals", 1, 1, 0, 0},
		{"more is not allowed", 1, 80, 1, 0},
		{"two tokens are an answer", 2, 80, 0, 0},
	} {
		b := newBench(3)
		for range 2 * leastAnswers {
			b.ranks[0].Answered(tt.own, tt.limit)
			b.ranks[1].Answered(tt.other, 0)
			b.ranks[2].Answered(tt.other, 0)
		}
		if b.judge(); b.ranks[0].About().Suspicions != tt.want || b.ranks[1].About().Suspicions != 0 {
			t.Errorf("%s: %v", tt.name, b.suspected())
		}
	}
}

func TestClaimsAreComparedWithWhatAnswersShow(t *testing.T) {
	for _, tt := range []struct {
		name       string
		own, other float64 // the share of the claim that answers show
		alone      bool
		trust      float64
	}{
		{"honest", 0.95, 0.9, false, 1},
		{"some of it was evicted", 0.6, 0.9, false, 1},
		{"nothing is there", 0, 0.9, false, leastTrust},
		{"a quarter is there", 0.25, 1, false, 0.25},
		{"no engine shows anything", 0, 0, false, 1},
		{"alone", 0, 0, true, 1},
	} {
		n := 3
		if tt.alone {
			n = 1
		}
		b := newBench(n)
		for range 3 * leastClaims {
			for i, r := range b.ranks {
				share := tt.other
				if i == 0 {
					share = tt.own
				}
				r.Claimed(1000, int(1000*share))
			}
		}
		b.ranks[0].Claimed(1000, -1) // not told
		b.ranks[0].Claimed(0, 0)     // nothing claimed
		b.judge()
		if got := b.ranks[0].About().Trust; got < tt.trust-0.01 || got > tt.trust+0.01 {
			t.Errorf("%s: %.2f of the claims count, want %.2f", tt.name, got, tt.trust)
		}
		if n > 1 && b.ranks[1].About().Trust != 1 {
			t.Errorf("%s: the honest ranks pay: %.2f", tt.name, b.ranks[1].About().Trust)
		}
	}
}

// A rank of another kind is compared with all ranks of the model, and allowed more.
func TestOtherHardwareIsAllowedMore(t *testing.T) {
	for _, tt := range []struct {
		period time.Duration
		want   Suspicion
	}{{80 * ms, 0}, {time.Second, Slow}} {
		b := newBench(4)
		b.fleet.Move(b.ranks[0], "other", "model")
		b.run(10*time.Second, 5, 200, tt.period, 20*ms, 20*ms, 20*ms)
		if got := b.ranks[0].About().Suspicions; got != tt.want {
			t.Errorf("a token in %s: %v, want %v", tt.period, got, tt.want)
		}
	}
}

// Whatever is done in whatever order, by whichever goroutine, nothing of a stream stays behind.
func TestStreamsLeaveNothingBehind(t *testing.T) {
	b := newBench(2)
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(g), 1))
			now := b.now
			for range 300 {
				now = now.Add(time.Duration(dice.IntN(100)) * ms)
				s, r := &Stream{}, b.ranks[dice.IntN(2)]
				r.Enter(s, Work{Uncached: dice.IntN(5000), Parallel: dice.IntN(3)}, now)
				for _, step := range dice.Perm(4) {
					switch step {
					case 0:
						s.Begin(now)
					case 1:
						s.Progress(dice.IntN(100))
					case 2:
						s.Writing(dice.IntN(2) == 0)
					case 3:
						r.Answered(dice.IntN(3), 0)
					}
				}
				s.End(now, dice.IntN(100), dice.IntN(2) == 0)
				s.End(now, 0, true)
				if b.fleet.Due(now) {
					b.fleet.Judge(now)
				}
			}
		})
	}
	wait.Wait()
	for _, r := range b.ranks {
		if r.meter.waiting != 0 || r.meter.prefill != 0 || r.streams != nil {
			t.Errorf("%d streams wait with %v tokens, %v runs", r.meter.waiting, r.meter.prefill, r.streams)
		}
		b.fleet.Remove(r)
	}
	if b.fleet.Judge(b.now); len(b.fleet.by) != 0 || len(b.fleet.ranks) != 0 {
		t.Errorf("%d groups and %d ranks are left", len(b.fleet.by), len(b.fleet.ranks))
	}
}
