package chooser

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/selector"
)

// teach shows a pace samples of an engine with the given rate.
func teach(p *pace, r *rand.Rand, samples int, token, bend float64, distort func(i int, t float64) float64) {
	for i := range samples {
		n := 600 + r.Float64()*r.Float64()*30000
		c := r.Float64() * 20000
		t := selector.PrefillTime(token, bend, c, n) * (0.95 + 0.1*r.Float64())
		if distort != nil {
			t = distort(i, t)
		}
		p.learn(c, n, t)
	}
}

func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s = %v, want %v within %.0f %%", what, got, want, 100*share)
	}
}

func TestPaceLearns(t *testing.T) {
	for _, truth := range []struct{ token, bend float64 }{{1.0 / 8000, 50000}, {1.0 / 25000, 30000}, {1.0 / 1500, 80000}, {1.0 / 100000, 20000}} {
		r := rand.New(rand.NewPCG(1, 1))
		p := newPace()
		teach(&p, r, 60, truth.token, truth.bend, nil)
		for _, n := range []float64{1000, 8000, 30000} {
			within(t, "prefill time", p.predict(0, n), selector.PrefillTime(truth.token, truth.bend, 0, n), 0.25)
		}
	}
}

// An engine far from the prior is known after a few prompts, whichever side it is on.
func TestPaceLearnsSoon(t *testing.T) {
	for _, factor := range []float64{1. / 10, 1. / 3, 3, 8, 20} {
		truth := priorTokenTime * factor
		r := rand.New(rand.NewPCG(5, 5))
		p := newPace()
		teach(&p, r, 10, truth, 50000, nil)
		within(t, fmt.Sprintf("prefill time of an engine %.1f times slower than the prior", factor), p.predict(0, 8000), selector.PrefillTime(truth, 50000, 0, 8000), 0.25)
	}
}

func TestPaceShrugsOffOutliers(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	p := newPace()
	teach(&p, r, 300, 1.0/8000, 50000, func(i int, t float64) float64 {
		switch i % 20 {
		case 7:
			return t * 50 // a stall
		case 13:
			return t / 100 // all of it was cached after all
		}
		return t
	})
	within(t, "prefill time", p.predict(0, 8000), selector.PrefillTime(1.0/8000, 50000, 0, 8000), 0.2)
}

func TestPaceIgnoresWhatIsNearlyAllCached(t *testing.T) {
	p := newPace()
	for range 1000 {
		p.learn(30000, 20, 0.05) // 20 uncached tokens in 50 ms of overhead
	}
	if p.samples != 0 || p.a != priorTokenTime {
		t.Errorf("learned %v from %d samples that say nothing about the rate", p.a, p.samples)
	}
}

func TestPaceStaysBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	p := newPace()
	for range 20000 {
		p.learn(r.Float64()*1e5, r.Float64()*1e5, math.Exp(20*r.NormFloat64()))
		if !(p.a >= priorTokenTime/paceBound && p.a <= priorTokenTime*paceBound) || !(p.bend() >= 3999 && p.bend() <= 1.01e6) {
			t.Fatalf("token time %v, bend %v", p.a, p.bend())
		}
	}
	teach(&p, r, 300, 1.0/8000, 50000, nil)
	within(t, "prefill time afterwards", p.predict(0, 8000), selector.PrefillTime(1.0/8000, 50000, 0, 8000), 0.25)
}

func TestOmegaRisesWithLoadAndFallsWithRanks(t *testing.T) {
	if omega(0, 8) != 1 {
		t.Errorf("ω of an idle fleet = %v, want 1", omega(0, 8))
	}
	last := 1.0
	for rho := 0.1; rho < 1.5; rho += 0.1 {
		w := omega(rho, 8)
		if w < last || w > 1+1/(1-rhoCap) {
			t.Errorf("ω(%.1f) = %v after %v", rho, w, last)
		}
		last = w
	}
	if !(omega(0.7, 64) < omega(0.7, 8) && omega(0.7, 8) < omega(0.7, 1)) {
		t.Errorf("ω at 0.7: %v for 64 ranks, %v for 8, %v for 1", omega(0.7, 64), omega(0.7, 8), omega(0.7, 1))
	}
}
