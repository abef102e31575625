package evaluate

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The rank has 1,000 blocks of 16 tokens, requests decode for ten seconds on average, and a token takes 1 ms to compute.
func TestCrowding(t *testing.T) {
	for _, c := range []struct {
		name             string
		blocks           uint32
		used             int64
		output           int // tokens of the answers on the rank
		prompt, expected int
		cached           uint32
		backlog, planned float64
		want             float64
	}{
		{name: "unknown memory", used: 1000, prompt: 160},
		{name: "empty", blocks: 1000, prompt: 160},
		{name: "just enough", blocks: 1000, used: 990, prompt: 100, expected: 60},
		{name: "full of prompts", blocks: 1000, used: 1000, prompt: 800, want: 0.05*10 - 0.8}, // negative: nothing beyond the prefill
		{name: "full of prompts, a long answer", blocks: 1000, used: 1000, prompt: 160, expected: 1440, want: 0.1*10 - 0.16},
		{name: "full of answers", blocks: 1000, used: 1000, output: 16_000, prompt: 160, expected: 1440, want: math.Sqrt(0.1)*10 - 0.16},
		{name: "half and half", blocks: 1000, used: 1000, output: 8000, prompt: 160, expected: 1440, want: (math.Sqrt(1.8)-1)/2*10 - 0.16},
		{name: "the cached part is there", blocks: 1000, used: 1000, output: 16_000, prompt: 1600, cached: 1440, expected: 1440, want: math.Sqrt(0.1)*10 - 0.16},
		{name: "prefills before it are waited for anyway", blocks: 1000, used: 1000, output: 16_000, prompt: 160, expected: 1440, backlog: 1, planned: 0.5, want: math.Sqrt(0.1)*10 - 1.66},
		{name: "more promised than there is", blocks: 1000, used: 2000, output: 32_000, prompt: 160, expected: 1440, want: math.Sqrt(0.55)*10 - 0.16},
		{name: "a request larger than an empty rank", blocks: 10, prompt: 1600},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &Evaluator{Residence: answers.NewResidence()}
			d := &decision.Decision{}
			d.PromptTokens, d.ExpectedOutput = c.prompt, c.expected
			cand := &decision.Candidate{}
			cand.Blocks, cand.BlockSize, cand.GPU = c.blocks, 16, c.cached
			cand.TokenTime, cand.Bend, cand.Backlog, cand.Planned = 0.001, math.Inf(1), c.backlog, c.planned
			l := &load.RankLoad{UsedBlocks: c.used, OutputTokens: c.output}
			if got := e.crowding(cand, d, l); math.Abs(got-max(0, c.want)) > 1e-9 {
				t.Fatalf("%v s, want %v", got, max(0, c.want))
			}
		})
	}
}

// The formula is the share after which requests of all ages hold so much less: counted one by one.
func TestMemoryFreesAsItsRequestsEnd(t *testing.T) {
	const n = 10_000
	held := func(prompt, answer, x float64) (sum float64) {
		for i := range n {
			if age := (float64(i)+0.5)/n + x; age < 1 {
				sum += prompt + answer*age
			}
		}
		return sum
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		prompt, answer := dice.Float64()*1000, dice.Float64()*1000
		full, x := held(prompt, answer, 0), dice.Float64()
		got := untilFree(n*prompt, full-n*prompt, full-held(prompt, answer, x))
		if math.Abs(got-x) > 0.01 {
			t.Fatalf("prompts of %.0f tokens and answers of %.0f: %.3f, want %.3f", prompt, answer, got, x)
		}
	}
}
