package rank

import (
	"math"
	"testing"
)

func TestDecayIsThatOfTheExponential(t *testing.T) {
	for _, x := range []float64{-1, 0, 1e-9, 1.0 / 64, 0.999999, 1, 31.999, 32, 800, math.Inf(1)} {
		if got, want := decay(x), math.Exp(-x); math.Abs(got-want) > 1e-8*want {
			t.Errorf("decay(%g) = %g, want %g", x, got, want)
		}
	}
	last := 1.0
	for i := range 100_000 {
		x := float64(i) / 2000
		got, want := decay(x), math.Exp(-x)
		if math.Abs(got-want) > 1e-8*want || got > last {
			t.Fatalf("decay(%g) = %g after %g, want %g", x, got, last, want)
		}
		last = got
	}
	if !math.IsNaN(decay(math.NaN())) {
		t.Error("no number decays to one")
	}
}
