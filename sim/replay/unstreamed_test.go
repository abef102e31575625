package replay

import (
	"fmt"
	"math"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Engines of which no first token is seen were learned from what they count of requests that shared their steps: as three to seven
// times slower than they are.
func TestEnginesAreLearnedFromWholeAnswers(t *testing.T) {
	plays(t)
	rates := map[string]float64{"conv": 1.4, "hotdoc": 1.8, "synth": 2.6}
	for name, rate := range rates {
		for _, speed := range []float64{0.25, 1, 4} {
			t.Run(fmt.Sprintf("%s, %v times the guess", name, speed), func(t *testing.T) {
				s, v := session(t, generated(t, name, 400), rate*speed, Options{Traffic: Traffic{Answers: Answers{Whole: true}}, Engines: Engines{Replicas: 4, Hardware: Hardware{Speeds: []float64{speed}}}})
				s.run(0)
				for _, r := range v.routers[0].chooser.Rates() {
					if off := r.TokensPerSecond / 8000 / speed; r.Source != decision.SpeedLearned || math.Abs(math.Log(off)) > math.Log(1.3) {
						t.Errorf("%s: %.2f times its tokens per second (%s, %d samples)", r.Replica, off, r.Source, r.Samples)
					}
					if off := r.StepTime * speed / 0.010; math.Abs(math.Log(off)) > math.Log(1.4) {
						t.Errorf("%s: %.2f times the time of its steps", r.Replica, off)
					}
				}
			})
		}
	}
}

// turned plays a load on four replicas of which the first becomes five times as slow after two minutes, and returns what was predicted of it
// from so many seconds later on, over what happened.
func turned(t *testing.T, seed uint64, rate, from, to float64) (ratios []float64) {
	t.Helper()
	const at = 120.
	trace, err := Generate("conv", 500, seed)
	if err != nil {
		t.Fatal(err)
	}
	s, v := session(t, trace, rate, Options{Engines: Engines{Replicas: 4, Turns: []Turn{{Replica: 0, At: at, Speed: 0.2}}}})
	s.router = &witness{service: v, note: func(a *attempt, sent, predicted float64) {
		if a.engine == 0 && sent >= at+from && sent < at+to {
			ratios = append(ratios, predicted/(s.first[a.call]-sent))
		}
	}}
	s.run(0)
	return ratios
}

// witness notes what was predicted of each call that ends.
type witness struct {
	*service
	note func(a *attempt, sent, predicted float64)
}

func (w *witness) finished(a *attempt) {
	d := w.of[a.call].choices[a.call].Decision
	w.note(a, a.sent, d.Pick().TTFT)
	w.service.finished(a)
}

// A replica that became five times as slow kept its rate for more than a minute: its first tokens were predicted four to seven times too early.
func TestAReplicaThatTurnsSlowIsPredictedAfter15Seconds(t *testing.T) {
	plays(t)
	var ratios []float64
	for seed := range uint64(6) {
		ratios = append(ratios, turned(t, seed+1, 1.5, 15, 200)...)
		ratios = append(ratios, turned(t, seed+1, 2, 15, 200)...)
	}
	right := 0
	for _, r := range ratios {
		if r >= 0.5 && r <= 2 {
			right++
		}
	}
	t.Logf("of %d predictions %d are within a factor of two", len(ratios), right)
	if len(ratios) < 40 || right < len(ratios)*8/10 {
		t.Errorf("of %d predictions %d are within a factor of two: %.2f", len(ratios), right, ratios)
	}
}
