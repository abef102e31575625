package evaluate

import (
	"math"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestARankHasEnoughForItsNextStep(t *testing.T) {
	for _, c := range []struct {
		name      string
		holdAbove float64
		fullStep  float64
		speed     decision.SpeedSource
		want      float64
	}{
		{"a full step", 0.5, 0.25, decision.SpeedLearned, 0.25},
		{"steps longer than hold_above", 0.5, 2, decision.SpeedLearned, 0.5},
		{"steps shorter than a request's way to them", 0.5, 0.07, decision.SpeedLearned, 0.1},
		{"very short steps", 0.5, 0.02, decision.SpeedLearned, 0.04},
		{"hold_above less than that", 0.02, 0.04, decision.SpeedLearned, 0.02},
		{"a guess", 0.5, 0.25, decision.SpeedPrior, 0.75},
		{"no hold queue", 0, 0.25, decision.SpeedLearned, math.Inf(1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cand := &decision.Candidate{}
			cand.FullStep, cand.Speed, cand.Spread = c.fullStep, c.speed, 2
			if got := room(c.holdAbove).Enough(cand); math.Abs(got-c.want) > 1e-9 {
				t.Fatalf("%v, want %v", got, c.want)
			}
		})
	}
}
