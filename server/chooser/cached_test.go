package chooser_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
)

// TestMustPredictedCachedTokensAreTheEnginesOwn: a decision that was made with the beginning of a prompt
// predicts by the whole of it, as long as the engine has not begun; prompt_logprobs read nothing; of several
// samples the engine counts the last one's hits; the last token is always computed.
func TestMustPredictedCachedTokensAreTheEnginesOwn(t *testing.T) {
	var got []decision.Outcome
	f := newFleet(t, 1, func(_ *chooser.Config, p *chooser.Params) {
		p.OnOutcome = func(o decision.Outcome) { got = append(got, o) }
	})
	const all = 40 * block
	f.holds(0, 7, all)
	hashes := blockhash.Chain(nil, tokens(7, all+5), block, blockhash.Namespace{})
	for _, tt := range []struct {
		name            string
		change          func(*chooser.Request)
		late            bool
		held, predicted int
	}{
		{"the beginning alone", nil, true, 10 * block, 10 * block},
		{"the whole in time", nil, false, all, all},
		{"prompt_logprobs", func(q *chooser.Request) { q.Unread = true }, false, 0, 0},
		{"several samples", func(q *chooser.Request) { q.Samples = 3 }, false, all, all},
		{"several samples of a new prompt", func(q *chooser.Request) {
			other := blockhash.Chain(nil, tokens(9, all), block, blockhash.Namespace{})
			q.Samples, q.PromptTokens, q.Estimated = 2, all, false
			q.Hashes = func(int) []blockhash.Hash { return other }
		}, true, 0, all - block},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := f.request(7, all+5)
			req.Estimated = true
			req.Hashes = func(int) []blockhash.Hash { return hashes[:10] }
			if tt.change != nil {
				tt.change(req)
			}
			c := f.choose(req)
			if tt.late {
				c.Begin()
			}
			if req.Estimated {
				c.Whole(hashes, all+5)
			}
			if c.Held() != tt.held {
				t.Errorf("Held() = %d, want %d", c.Held(), tt.held)
			}
			c.Release(done(decision.EndCompleted))
			if p := got[len(got)-1].PredictedCached; p != tt.predicted {
				t.Errorf("predicted %d cached tokens, want %d", p, tt.predicted)
			}
		})
	}
	f.empty()
}
