package replay

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Under the objective completion prompts wait while answers are written: those end sooner, and all of them on average, although first tokens come later.
func TestCompletionBuysWholeAnswersWithFirstTokens(t *testing.T) {
	plays(t)
	for trace, rate := range map[string]float64{"rag": 5.5, "conv": 2.3} {
		var first, whole [2]float64
		for i, objective := range []decision.Objective{decision.ObjectiveAnswer, decision.ObjectiveCompletion} {
			s, _ := session(t, generated(t, trace, 500), rate, Options{Rules: Rules{Objective: objective}, Engines: Engines{Replicas: 4}})
			s.run(0)
			for c := range s.done {
				first[i] += s.first[c] - s.arrived[c]
				whole[i] += s.done[c] - s.arrived[c]
			}
		}
		t.Logf("%s: first tokens %.2f times, whole answers %.2f times", trace, first[1]/first[0], whole[1]/whole[0])
		if whole[1] > 0.8*whole[0] || first[1] < first[0] {
			t.Errorf("%s: first tokens %.2f times, whole answers %.2f times the default objective's", trace, first[1]/first[0], whole[1]/whole[0])
		}
	}
}
