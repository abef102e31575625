package selector_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// ahead counts the copies of a prompt that are made one after the other for a fork, when each lands before the next one.
func ahead(t *testing.T, fork selector.Fork, change func(*selector.Copying, *selector.Pairing, []decision.Candidate), ranks int) (to []int) {
	t.Helper()
	const prompt, held = 20_000, 19_200
	candidates := make([]decision.Candidate, ranks)
	roles := make([]replica.Role, ranks)
	candidates[0].GPU = held
	c, p := selector.Copying{Able: true}, pairing(roles...)
	if change != nil {
		change(&c, p, candidates)
	}
	for {
		d := ranked(prompt, candidates...)
		selector.Choose(d)
		one, ok := c.Ahead(d, p, fork, func(int) bool { return false })
		if !ok {
			return to
		}
		if one.From < 0 || candidates[one.From].GPU < held || one.Held != held || one.Moved != held || one.Arrives <= 0 {
			t.Fatalf("%+v", one)
		}
		to = append(to, one.To)
		candidates[one.To].GPU = held
	}
}

func TestCopiesAheadAreAsManyAsTheForkIsWorth(t *testing.T) {
	warm := func(_ *selector.Copying, _ *selector.Pairing, all []decision.Candidate) {
		for i := range all {
			all[i].Returns, all[i].Saved, all[i].Busy = 1, 3, 0.5
		}
	}
	for _, tt := range []struct {
		name        string
		fork        selector.Fork
		change      func(*selector.Copying, *selector.Pairing, []decision.Candidate)
		ranks       int
		least, most int
	}{
		{"never forked", selector.Fork{}, nil, 8, 0, 0},
		{"always by 43", selector.Fork{Share: 1, Children: 43}, nil, 8, 7, 7},
		{"always by 43, caches in use", selector.Fork{Share: 1, Children: 43}, warm, 8, 7, 7},
		{"always by 5, caches in use", selector.Fork{Share: 1, Children: 5}, warm, 8, 1, 5},
		{"seldom by 5, caches in use", selector.Fork{Share: 0.05, Children: 5}, warm, 8, 0, 0},
		{"seldom by 43, caches in use", selector.Fork{Share: 0.05, Children: 43}, warm, 8, 0, 1},
		{"by 43, many ranks", selector.Fork{Share: 0.9, Children: 43}, warm, 200, 10, 60},
		{"one rank", selector.Fork{Share: 1, Children: 43}, nil, 1, 0, 0},
		{"no way between them", selector.Fork{Share: 1, Children: 43}, func(_ *selector.Copying, p *selector.Pairing, _ []decision.Candidate) { p.Lanes[0].Closed = true }, 8, 0, 0},
		{"the prompt is short", selector.Fork{Share: 1, Children: 43}, func(_ *selector.Copying, _ *selector.Pairing, all []decision.Candidate) { all[0].GPU = 512 }, 8, 0, 0},
		{"no memory on half of them", selector.Fork{Share: 1, Children: 43}, func(_ *selector.Copying, _ *selector.Pairing, all []decision.Candidate) {
			for i := range all {
				if all[i].BlockSize, all[i].Blocks, all[i].DecodeBlocks = 16, 10_000, 2000; i >= 4 {
					all[i].DecodeBlocks = 8000
				}
			}
		}, 8, 3, 3},
		{"half of them get others", selector.Fork{Share: 1, Children: 43}, func(c *selector.Copying, _ *selector.Pairing, all []decision.Candidate) {
			c.Traffic = make([]selector.Traffic, len(all))
			for i := 4; i < len(all); i++ {
				c.Traffic[i].Closed = true
			}
		}, 8, 3, 3},
		{"the holder sends others", selector.Fork{Share: 1, Children: 43}, func(c *selector.Copying, _ *selector.Pairing, all []decision.Candidate) {
			c.Traffic = make([]selector.Traffic, len(all))
			c.Traffic[0].Sends = 3
		}, 8, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ahead(t, tt.fork, tt.change, tt.ranks); len(got) < tt.least || len(got) > tt.most {
				t.Errorf("%d copies: %v", len(got), got)
			}
		})
	}
}
