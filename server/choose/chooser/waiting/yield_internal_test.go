package waiting

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestALongPromptYieldsToQuickOnesAlone(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name    string
		waiting uint32
		queued  uint32 // uncached tokens of those that wait
		own     uint32
		step    float64 // a full step of 2,048 tokens, in seconds
		speed   decision.SpeedSource
		yields  bool
	}{
		{"nobody waits", 0, 0, 2000, 0.1, decision.SpeedLearned, false},
		{"a hit waits", 1, 40, 2000, 0.1, decision.SpeedLearned, true},
		{"hits and one as long wait", 3, 2080, 2000, 0.1, decision.SpeedLearned, true},
		{"one as long waits", 1, 2000, 2000, 0.1, decision.SpeedLearned, false},
		{"some nearly as long wait", 4, 7200, 2000, 0.1, decision.SpeedLearned, false},
		{"a longer one waits", 1, 8000, 2000, 0.1, decision.SpeedLearned, false},
		{"one as long waits, where steps are long", 1, 2000, 2000, 0.3, decision.SpeedLearned, true},
		{"the own prompt is short", 1, 40, 900, 0.1, decision.SpeedLearned, false},
		{"the speed is a guess", 1, 40, 2000, 0.1, decision.SpeedPrior, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cand := &decision.Candidate{}
			cand.Waiting, cand.QueuedTokens, cand.Uncached, cand.Speed = c.waiting, c.queued, c.own, c.speed
			cand.Prefill, cand.FullStep = c.step*float64(c.own)/2048, c.step
			var y yielding
			if got := y.to(cand, now); got != c.yields {
				t.Fatalf("yields: %v", got)
			}
			if late := now.Add(time.Duration(1.01 * cand.FullStep * float64(time.Second))); y.to(cand, late) {
				t.Fatal("it still yields after a full step")
			}
		})
	}
}
