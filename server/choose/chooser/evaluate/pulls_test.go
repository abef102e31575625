package evaluate

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The rank that has computed a prefix a moment ago is as good as the others for requests that share it: what it has done for the prefix is done.
func TestPrefixThatManyWaitForIsNoWorkToCome(t *testing.T) {
	for _, tt := range []struct {
		name    string
		sharers int
		able    bool
		want    int
	}{
		{"one request", 1, true, 1},
		{"a few", selector.LeastSharers - 1, true, 1},
		{"a fork", selector.LeastSharers, true, 0},
		{"a fork where nothing is copied", selector.LeastSharers, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			holder := decision.Candidate{
				Overlap:  decision.Overlap{GPU: 32_000, BlockSize: 16},
				Pace:     decision.Pace{TokenTime: 125e-6, StepTime: 0.01, FullStep: 0.266, Busy: 0.15, Speed: decision.SpeedLearned},
				Revisits: decision.Revisits{Residual: 0.5},
			}
			other := holder
			other.Slot, other.Busy, other.Residual, other.Backlog = 1, 0, 0, 0.2
			s := Evaluation{Pool: &layout.Pool{}, Decision: decision.Decision{
				Prompt: decision.Prompt{PromptTokens: 32_800, Splittable: true, ExpectedOutput: 250},
				Rule:   decision.Rule{Policy: decision.PredictedTTFT, Params: selector.DefaultParams()},
				Ranks:  decision.Ranks{Candidates: []decision.Candidate{holder, other}, Chosen: -1},
				Fleet:  decision.Fleet{Omega: 1, Returning: 0.5},
			}}
			s.copying.Able, s.pairing.Members = tt.able, make([]selector.Member, 2)
			s.SetSharers(tt.sharers)
			s.Choose()
			if s.Decision.Chosen != tt.want {
				t.Errorf("rank %d of costs %v and %v", s.Decision.Chosen, s.Decision.Candidates[0].Cost, s.Decision.Candidates[1].Cost)
			}
		})
	}
}
