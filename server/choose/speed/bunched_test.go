package speed

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Of a machine that is overloaded, first tokens come late and many together: 5,000,000 tokens/s were learned.
func TestFirstTokensThatComeTogetherTeachTheirSum(t *testing.T) {
	const rate = 8000.0
	for seed := range uint64(5) {
		dice := rand.New(rand.NewPCG(seed, 3))
		r := new(kind).newRank()
		now := time.Unix(1000, 0)
		for range 40 { // each time 24 prompts at once
			var entries [24]Entry
			for i := range entries {
				r.Booked(&entries[i], Work{Tokens: 2500}, now, Decodes{})
			}
			done := now
			seen := now
			for i := range entries {
				done = done.Add(seconds(2500 / rate))
				// The router runs for a moment every two seconds, and then sees all that has come, 5 ms apart.
				turn := now.Add(time.Duration(1+int(done.Sub(now)/(2*time.Second))) * 2 * time.Second)
				at := turn.Add(time.Duration(dice.IntN(1000)) * time.Microsecond)
				if !at.After(seen) {
					at = seen
				}
				seen = at.Add(5 * time.Millisecond)
				r.FirstToken(&entries[i], seen, Decodes{})
			}
			now = seen.Add(3 * time.Second)
		}
		if got := 1 / r.Model().Token; got < rate/1.6 || got > rate*1.6 {
			t.Errorf("seed %d: %.0f tokens/s, want %.0f", seed, got, rate)
		}
	}
}

// However fast first tokens come, an engine that counts its prefills is not many times faster than it counts.
func TestCountersBoundTheRate(t *testing.T) {
	r, c := new(kind).newRank(), &Counters{}
	now := time.Unix(1000, 0)
	for i := range 40 {
		var e Entry
		r.Booked(&e, Work{Tokens: 4000}, now, Decodes{})
		r.FirstToken(&e, now.Add(time.Millisecond), Decodes{})
		now = now.Add(time.Second)
		c.See(r, &Report{At: now, Computed: uint64(30000 * (i + 1)), PrefillSeconds: float64(3 * (i + 1))}, Decodes{})
	}
	if got := 1 / r.Model().Token; got > 10000*sharing*1.01 {
		t.Errorf("%.0f tokens/s of an engine that counts 10,000", got)
	}
}

// A rank is not believed to be many times faster than its equals, and one that is excluded not faster at all.
func TestEqualsBoundTheRate(t *testing.T) {
	k := new(kind)
	ranks := []*Rank{k.newRank(), k.newRank(), k.newRank()}
	now := time.Unix(1000, 0)
	for range 40 {
		for i, r := range ranks {
			took := seconds(4000. / 8000)
			if i == 0 {
				took = time.Millisecond
			}
			var e Entry
			r.Booked(&e, Work{Tokens: 4000}, now, Decodes{})
			r.FirstToken(&e, now.Add(took), Decodes{})
		}
		now = now.Add(time.Second)
	}
	if got := 1 / ranks[0].Model().Token; got > implausible*10000 {
		t.Errorf("%.0f tokens/s where equals have 8,000", got)
	}
	ranks[0].Exclude(true)
	if got := 1 / ranks[0].Model().Token; got > 10000 {
		t.Errorf("%.0f tokens/s of an excluded rank where equals have 8,000", got)
	}
	if late := k.newRank(); 1/late.Model().Token > 10000 {
		t.Errorf("a new rank is taken to have %.0f tokens/s", 1/late.Model().Token)
	}
	ranks[0].Exclude(false)
	if got := 1 / ranks[0].Model().Token; got < 20000 {
		t.Errorf("%.0f tokens/s once it is an example again", got)
	}
}
