package chooser_test

import (
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// TestMustPredictedCachedTokensAreTheEnginesOwn: a decision that was made with the beginning of a prompt
// predicts by the whole of it, as long as the engine has not begun; prompt_logprobs read nothing; of several
// samples the engine counts the last one's hits; the last token is always computed.
func TestMustPredictedCachedTokensAreTheEnginesOwn(t *testing.T) {
	var got []decision.Outcome
	f := newFleet(t, 1, func(_ *chooser.Config, p *chooser.Params) {
		p.Record = outcomes(func(o decision.Outcome) { got = append(got, o) })
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
	// The engine may have begun before the ids are known: it stores from where its cache ended.
	req := f.request(7, all+3*block)
	req.Estimated = true
	more := blockhash.Chain(nil, tokens(7, all+3*block), block, blockhash.Namespace{})
	req.Hashes = func(int) []blockhash.Hash { return more[:10] }
	c := f.choose(req)
	f.index.Store(0, &kvblock.Stored{Hashes: []kvblock.EngineHash{1, 2}, Parent: kvblock.EngineHash(7*100_000 + 40), HasParent: true, Tokens: tokens(7, all+2*block)[all:], BlockSize: block})
	c.Whole(more, all+3*block)
	if c.Held() != all {
		t.Errorf("Held() = %d after the engine stored the rest, want %d", c.Held(), all)
	}
	c.Release(done(decision.EndCompleted))
	f.empty()
}

// The rank that gave the answer which the prompt continues with holds it, if it still holds what is known of the prompt.
func TestTheRankOfTheLastAnswerHoldsIt(t *testing.T) {
	f := newFleet(t, 3, nil)
	f.holds(0, 7, 10*block)
	f.holds(1, 7, 10*block)
	f.holds(2, 7, 4*block)
	hashes := blockhash.Chain(nil, tokens(7, 10*block+3), block, blockhash.Namespace{})
	for _, tt := range []struct {
		name   string
		answer chooser.Answer
		held   [3]int // in blocks
	}{
		{"no answer", chooser.Answer{}, [3]int{10, 10, 4}},
		{"of rank 1", chooser.Answer{Slot: 1, Known: 10*block + 3, Held: 14*block + 2}, [3]int{10, 14, 4}},
		{"of a rank that lost the beginning", chooser.Answer{Slot: 2, Known: 10*block + 3, Held: 14*block + 2}, [3]int{10, 10, 4}},
		{"longer than the prompt", chooser.Answer{Slot: 1, Known: 10*block + 3, Held: 99 * block}, [3]int{10, 19, 4}},
		{"not repeated", chooser.Answer{Slot: 1, Known: 10*block + 3}, [3]int{10, 10, 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := f.request(7, 20*block)
			req.Estimated, req.Answer = true, tt.answer
			req.Hashes = func(int) []blockhash.Hash { return hashes }
			c := f.choose(req)
			for _, cand := range c.Decision.List() {
				if int(cand.GPU) != tt.held[cand.Slot]*block {
					t.Errorf("rank %d holds %d blocks, want %d", cand.Slot, cand.GPU/block, tt.held[cand.Slot])
				}
			}
			// What is found by the whole prompt's hashes stands for what was expected.
			if held, ok := c.Whole(blockhash.Chain(nil, tokens(7, 20*block), block, blockhash.Namespace{}), 20*block); !ok || held != min(tt.held[c.Slot], 10)*block {
				t.Errorf("Whole() = %d, %v", held, ok)
			}
			c.Release(done(decision.EndCompleted))
		})
	}
	f.empty()
}

// What the engine stores of the prompt while Whole looks does not count as held before.
func TestWholeLeavesOutWhatIsStoredAtTheSameTime(t *testing.T) {
	f := newFleet(t, 1, nil)
	const held, all = 10 * block, 90 * block
	for n := range 400 {
		id := n + 1
		f.holds(0, id, held)
		hashes := blockhash.Chain(nil, tokens(id, all+5), block, blockhash.Namespace{})
		req := f.request(id, all+5)
		req.Estimated = true
		req.Hashes = func(int) []blockhash.Hash { return hashes[:10] }
		c := f.choose(req)
		stored := &kvblock.Stored{Parent: kvblock.EngineHash(id*100_000 + 10), HasParent: true, Tokens: tokens(id, all)[held:], BlockSize: block}
		for i := 11; i <= all/block; i++ {
			stored.Hashes = append(stored.Hashes, kvblock.EngineHash(id*100_000+i))
		}
		var done sync.WaitGroup
		done.Go(func() { f.index.Store(0, stored) })
		c.Whole(hashes, all+5)
		done.Wait()
		if c.Held() != held {
			t.Fatalf("prompt %d: Held() = %d, want %d", id, c.Held(), held)
		}
		c.Release(chooser.Result{End: decision.EndCompleted})
	}
	f.empty()
}
