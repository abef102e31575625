package replay

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestRulesOfOtherRouters(t *testing.T) {
	// Four engines, blocks of 100 tokens, a prompt of ten blocks.
	for name, tt := range map[string]struct {
		rule     rule
		held     []int
		active   []int
		requests []int
		prefill  []int
		want     int
	}{
		"llm-d: stays where four fifths are held, behind a backlog": {stickyUntilSaturated{1000}, []int{0, 8, 0, 0}, nil, nil, []int{0, 17_000, 0, 0}, 1},
		"llm-d: leaves after 18 s":                                  {stickyUntilSaturated{1000}, []int{0, 8, 0, 0}, nil, nil, []int{500, 18_500, 400, 500}, 2},
		"llm-d: less than four fifths is a cost alone":              {stickyUntilSaturated{1000}, []int{0, 7, 0, 0}, nil, nil, []int{0, 800, 100, 50}, 0},
		"llm-d: of two holders the one with less to do":             {stickyUntilSaturated{1000}, []int{9, 8, 0, 0}, nil, nil, []int{500, 300, 0, 0}, 1},
		"Dynamo: overlap against backlog":                           {backlogLessOverlap{}, []int{0, 6, 0, 0}, nil, nil, []int{0, 500, 200, 300}, 1},
		"Dynamo: a longer backlog than overlap":                     {backlogLessOverlap{}, []int{0, 6, 0, 0}, nil, nil, []int{0, 700, 200, 300}, 0},
		"Dynamo: shared blocks in use count once":                   {backlogLessOverlap{}, []int{5, 5, 5, 5}, []int{0, 0, 5, 0}, nil, []int{0, 0, 0, 0}, 2},
		"AIBrix: the longest match":                                 {matchUnlessCrowded{}, []int{3, 0, 5, 0}, nil, []int{2, 2, 2, 2}, nil, 2},
		"AIBrix: of equal matches the one with fewer requests":      {matchUnlessCrowded{}, []int{5, 0, 5, 0}, nil, []int{3, 2, 2, 2}, nil, 2},
		"AIBrix: not where it is crowded":                           {matchUnlessCrowded{}, []int{5, 0, 2, 0}, nil, []int{8, 2, 2, 2}, nil, 2},
		"AIBrix: requests alone where the fleet is uneven":          {matchUnlessCrowded{}, []int{5, 5, 5, 0}, nil, []int{9, 8, 7, 0}, nil, 3},
	} {
		engines := make([]rivalEngine, 4)
		for e := range engines {
			if tt.requests != nil {
				engines[e].requests = tt.requests[e]
			}
			if tt.prefill != nil {
				engines[e].prefill = tt.prefill[e]
			}
		}
		active := tt.active
		if active == nil {
			active = make([]int, 4)
		}
		costs := tt.rule.costs(nil, &rivalRequest{tokens: 1000, block: 100, blocks: 10, held: tt.held, active: active}, engines)
		if got := lowestOf(costs, rand.New(rand.NewPCG(1, 1))); got != tt.want {
			t.Errorf("%s: engine %d of costs %v, want %d", name, got, costs, tt.want)
		}
	}
}

func TestSGLangRemembersWhatItSent(t *testing.T) {
	engines := make([]rivalEngine, 3)
	prompt := func(first, n int) *rivalRequest {
		in := &rivalRequest{blocks: n}
		for i := range n {
			in.keys = append(in.keys, blockhash.Hash(first+i))
		}
		return in
	}
	rule := newRoutedOrLeast(3)
	choose := func(in *rivalRequest) int {
		return lowestOf(rule.costs(nil, in, engines), rand.New(rand.NewPCG(1, 1)))
	}
	rule.sent(prompt(100, 10), 0)
	rule.sent(prompt(300, 6), 2)
	engines[0].requests, engines[1].requests, engines[2].requests = 3, 2, 2
	for name, tt := range map[string]struct {
		in   *rivalRequest
		want int
	}{
		"a new prompt, the first with least to do": {prompt(900, 5), 1},
		"a known beginning":                        {prompt(100, 20), 0},
		"three tenths are too little":              {&rivalRequest{blocks: 10, keys: append(prompt(300, 3).keys, prompt(900, 7).keys...)}, 1},
	} {
		if got := choose(tt.in); got != tt.want {
			t.Errorf("%s: engine %d, want %d", name, got, tt.want)
		}
	}
	engines[0].requests, engines[1].requests, engines[2].requests = 65, 1, 0
	if got := choose(prompt(100, 10)); got != 2 {
		t.Errorf("an uneven fleet: engine %d, want the one with the fewest requests", got)
	}
	engines[0].requests = 64
	if got := choose(prompt(100, 10)); got != 0 {
		t.Errorf("a difference of 64: engine %d, want the one that has the prompt", got)
	}
}

func TestEqualsAreDrawn(t *testing.T) {
	dice, count := rand.New(rand.NewPCG(1, 2)), [4]int{}
	for range 3000 {
		count[lowestOf([]float64{1, 0, 0, math.Inf(1)}, dice)]++
	}
	if count[0]+count[3] != 0 || count[1] < 1300 || count[2] < 1300 {
		t.Errorf("drawn %v", count)
	}
}

// Each call ends, and what a rule counts of engines is nothing afterwards, streamed or not.
func TestRivalsServeEveryCallAndForgetIt(t *testing.T) {
	for _, policy := range Rivals() {
		for _, whole := range []bool{false, true} {
			trace := generated(t, "conv", 400)
			p := Profiles()[0]
			j := &job{work: newWorkload(trace, 512), speed: 3, seed: 1, setup: ruleset{Policy: policy}}
			j.options.Answers.Whole = whole
			s := newSim(j.work, newEngines(&p, Hardware{}, 4, 512), j.speed, j.seed)
			s.delays = LocalDelays()
			r := newRival(s, j)
			s.router = r
			s.run(0)
			if s.ended != len(trace.Calls) {
				t.Errorf("%s: %d of %d calls ended", policy, s.ended, len(trace.Calls))
			}
			for e := range r.engines {
				if got := &r.engines[e]; got.requests != 0 || got.prefill != 0 || len(got.active) != 0 {
					t.Errorf("%s: engine %d is left with %+v", policy, e, got)
				}
			}
		}
	}
}

func TestTheDefaultLeadsTheRulesOfOtherRouters(t *testing.T) {
	plays(t)
	r := play(t, Options{
		Traffic: Traffic{Trace: generated(t, "conv", 2500), Load: 0.95}, Engines: Engines{Replicas: 8},
		Rules: Rules{Policies: append(Rivals(), decision.PredictedTTFT)}, Runs: Runs{NoSaturation: true},
	})
	own := r.Policies[decision.PredictedTTFT]
	for _, name := range Rivals() {
		if own.Mean > 0.95*r.Policies[name].Mean {
			t.Errorf("mean %.2f s, %s has %.2f s", own.Mean, name, r.Policies[name].Mean)
		}
	}
}
