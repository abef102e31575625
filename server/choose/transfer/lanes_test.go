package transfer

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

// The published times of single requests, which the prior is a line through.
func TestPriorFollowsThePublishedTimes(t *testing.T) {
	prior := priorModel()
	for tokens, ms := range map[float64]float64{2048: 35, 8192: 57, 16384: 86, 32768: 165, 49152: 235} {
		if got := prior.seconds(tokens) * 1e3; got < 0.8*ms || got > 1.2*ms {
			t.Errorf("%v tokens take %.0f ms, published are %v", tokens, got, ms)
		}
	}
}

func TestLaneLearnsStartAndRate(t *testing.T) {
	for _, tt := range []struct {
		name            string
		start, perToken float64
		lengths         []int
		at              []float64
	}{
		{"as published", 0.025, 4.4e-6, []int{2000, 40000}, []float64{2000, 40000}},
		{"a slow network", 0.3, 2e-4, []int{300, 1200, 6000}, []float64{500, 4000}},
		{"a fast one", 0.002, 5e-7, []int{2000, 10000, 60000}, []float64{4000, 50000}},
		{"one length only", 0.5, 1e-4, []int{1200}, []float64{1200}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lanes Lanes
			lane := lanes.Of("a", "b")
			dice := rand.New(rand.NewPCG(1, 2))
			for i := range 50 {
				tokens := tt.lengths[i%len(tt.lengths)]
				seconds := (tt.start + tt.perToken*float64(tokens)) * (0.9 + 0.2*dice.Float64())
				if i%10 == 0 {
					seconds += 4.5 // a handshake
				}
				lane.Learn(tokens, seconds)
			}
			m := lane.Model()
			for _, tokens := range tt.at {
				want := tt.start + tt.perToken*tokens
				if got := m.seconds(tokens); got < 0.8*want || got > 1.25*want {
					t.Errorf("%v tokens: predicted %.4f s, are %.4f s (%+v)", tokens, got, want, m)
				}
			}
			if m.Samples != 50 {
				t.Errorf("%d samples, want 50", m.Samples)
			}
		})
	}
}

func TestLaneForgetsAnOldSpeed(t *testing.T) {
	var lanes Lanes
	lane := lanes.Of("", "")
	for range 100 {
		lane.Learn(4000, 0.1)
	}
	for range 64 {
		lane.Learn(4000, 1)
	}
	if m := lane.Model(); math.Abs(m.seconds(4000)-1) > 0.1 {
		t.Errorf("predicts %.2f s, the last 64 took 1 s", m.seconds(4000))
	}
}

func TestImpossibleTransfersTeachNothing(t *testing.T) {
	var lanes Lanes
	lane := lanes.Of("a", "a")
	for _, seconds := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		lane.Learn(1000, seconds)
	}
	lane.Learn(0, 1)
	if m := lane.Model(); m != priorModel() {
		t.Errorf("learned %+v", m)
	}
}

func TestLanesAreBounded(t *testing.T) {
	var lanes Lanes
	if a, b := lanes.Of("a", "b"), lanes.Of("a", "b"); a != b || a == lanes.Of("b", "a") {
		t.Error("a lane is not found again, or is that of the other direction")
	}
	for i := range 5000 {
		lanes.Of(strconv.Itoa(i), "x")
	}
	if n := len(lanes.List()); n > 1025 {
		t.Errorf("%d lanes", n)
	}
}
