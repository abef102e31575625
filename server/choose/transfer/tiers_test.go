package transfer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

func TestATierLearnsItsLoads(t *testing.T) {
	for _, tt := range []struct {
		name            string
		start, perToken float64
	}{
		{"as guessed", 0.005, 4e-6},
		{"a tenth of the rate", 0.01, 4e-5},
		{"faster", 0.001, 5e-7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var loads Loads
			of, other := NewTiers(&loads, "kind"), NewTiers(&loads, "kind")
			dice := rand.New(rand.NewPCG(1, 2))
			for range 40 {
				n := 500 + dice.IntN(30_000)
				of.Host.Learn(n, (tt.start+tt.perToken*float64(n))*(0.9+0.2*dice.Float64()))
			}
			for _, n := range []uint32{1000, 8000, 25_000} {
				l := other.Loading(&decision.Overlap{CPU: n}, 0, 0)
				want := tt.start + tt.perToken*float64(n)
				if l.Load < 0.75*want || l.Load > 1.35*want || l.Loadable != n {
					t.Errorf("%d tokens: %.4f s for %d tokens, want %.4f s: ranks of one kind share what they have learned", n, l.Load, l.Loadable, want)
				}
			}
			guess := NewTiers(&loads, "another kind")
			if l := guess.Loading(&decision.Overlap{CPU: 10_000}, 0, 0); l.Load != 0.045 {
				t.Errorf("another kind: %v s, want the first guess of 0.045", l.Load)
			}
			of.Move(&loads, "another kind")
			if got := of.Host.Model().Samples; got != 0 {
				t.Errorf("a rank of another kind keeps %d samples", got)
			}
		})
	}
}

// What the engine does not find does not count: neither as cached, nor as time to load.
func TestAnEmptyTierIsNotCountedOn(t *testing.T) {
	var loads Loads
	tiers := NewTiers(&loads, 1)
	held := &decision.Overlap{GPU: 100, CPU: 4000, Disk: 1000}
	before := tiers.Loading(held, 0, 0)
	if before.Loadable != 5000 || before.Load <= 0 {
		t.Fatalf("at first %+v, want all 5000", before)
	}
	for range 8 {
		tiers.Host.Found(2000, 4000)
	}
	half := tiers.Loading(held, 0, 0)
	if half.Loadable < 3000 || half.Loadable > 3800 || half.Load >= before.Load {
		t.Errorf("of a tier where half is found: %+v, before %+v", half, before)
	}
	for range 60 {
		tiers.Host.Found(0, 4000)
		tiers.Store.Found(-5, 1000)
	}
	if none := tiers.Loading(held, 0, 0); none != (decision.Loading{}) {
		t.Errorf("of tiers where nothing is found: %+v, want nothing", none)
	}
	for range 60 {
		tiers.Host.Found(9000, 4000)
	}
	tiers.Host.Found(0, 0) // says nothing
	if again := tiers.Loading(held, 0, 0); again.Loadable < 3900 || again.Loadable > 4000 {
		t.Errorf("when it is found again: %+v, want about 4000", again)
	}
	if got := tiers.Host.Seen(); got != 128 {
		t.Errorf("%d requests seen, want 128", got)
	}
}

func TestKindsOfEnginesAreBounded(t *testing.T) {
	var loads Loads
	for kind := range 3000 {
		loads.of(kind, kvblock.TierCPU)
	}
	if loads.of(2998, kvblock.TierCPU) != loads.of(2999, kvblock.TierCPU) || loads.of(1, kvblock.TierCPU) == loads.of(2, kvblock.TierCPU) {
		t.Error("the kinds beyond the bound do not share a lane, or the first ones do")
	}
	if loads.of(2999, kvblock.TierCPU) == loads.of(2999, kvblock.TierDisk) {
		t.Error("two tiers share a lane")
	}
}

// Loads of one rank follow each other.
func TestALoadWaitsForThoseBookedBefore(t *testing.T) {
	var loads Loads
	tiers, other := NewTiers(&loads, 1), NewTiers(&loads, 1)
	held := &decision.Overlap{CPU: 10_000}
	alone := tiers.Loading(held, 0, 0)
	tiers.Book(2, 1e9)
	tiers.Book(3, 2e9)
	if l := tiers.Loading(held, 0, 4e9); l.LoadWait != 2 || math.Abs(l.OwnLoad()-alone.Load) > 1e-9 {
		t.Errorf("4 s after the begin of loads of 2 s and 3 s that began after 1 s: %+v, want a wait of 2 s", l)
	}
	if l := tiers.Loading(held, 0, 7e9); l != alone {
		t.Errorf("when they are over: %+v, want %+v", l, alone)
	}
	if l := other.Loading(held, 0, 4e9); l != alone {
		t.Errorf("another rank: %+v, want %+v", l, alone)
	}
	if l := tiers.Loading(&decision.Overlap{GPU: 10_000}, 0, 4e9); l != (decision.Loading{}) {
		t.Errorf("nothing to load: %+v", l)
	}
}

// Another router's times are used until a load is seen here.
func TestTimesOfOtherRoutersAreUsedUntilALoadIsSeen(t *testing.T) {
	var here, there Loads
	learned, fresh, own := NewTiers(&there, 1), NewTiers(&here, 1), NewTiers(&here, 2)
	if learned.Learned() != (Times{}) {
		t.Errorf("nothing was loaded, and %+v is exported", learned.Learned())
	}
	for _, n := range []int{1000, 5000, 20_000} {
		learned.Host.Learn(n, 0.1+1e-4*float64(n))
		own.Host.Learn(n, 0.001)
	}
	times := learned.Learned()
	if times.Host.Samples != 3 || times.Store != (Model{}) {
		t.Fatalf("exported: %+v", times)
	}
	before := own.Host.Model()
	for range 2 { // facts are put in force again and again
		fresh.Import(times)
		own.Import(times)
	}
	if got := fresh.Host.Model(); got != times.Host || fresh.Learned() != (Times{}) {
		t.Errorf("taken: %+v, want %+v, and not as its own: %+v", got, times.Host, fresh.Learned())
	}
	if got := own.Host.Model(); got != before {
		t.Errorf("a router that has seen loads takes %+v", got)
	}
	if got := fresh.Store.Model(); got != priorLoad(kvblock.TierDisk) {
		t.Errorf("the store, which nobody has loaded from: %+v", got)
	}
	fresh.Host.Learn(10_000, 0.02)
	if m, took := fresh.Host.Model(), 0.02; m.Samples != 1 || math.Abs(m.seconds(10_000)-took) > 0.2*took {
		t.Errorf("after a load of %v s: %+v", took, m)
	}
}
