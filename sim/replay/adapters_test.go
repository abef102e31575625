package replay

import (
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// adapterOptions play the trace of adapters at a rate at which slots are scarce.
func adapterOptions(t *testing.T, rate float64, policies ...decision.Policy) Options {
	t.Helper()
	trace, err := Generate("adapters", 1500, 1)
	if err != nil {
		t.Fatal(err)
	}
	p := Profiles()[0]
	p.Adapters = enginemodel.Adapters{Slots: 4, Load: 200 * time.Millisecond, Activate: 20 * time.Millisecond}
	return Options{
		Traffic: Traffic{Trace: trace, Rates: []float64{rate}}, Engines: Engines{Replicas: 8, Profile: p, Block: 128, Delays: LocalDelays()},
		Rules: Rules{Policies: policies}, Runs: Runs{Seeds: 1, NoSaturation: true},
	}
}

// The record of residents pays: the same policy without the adapters' names, and requests in flight alone, are much slower.
func TestKnowingTheAdaptersPays(t *testing.T) {
	plays(t)
	played := func(o Options) map[decision.Policy]PolicyReport {
		r, err := PlayLoads(o)
		if err != nil {
			t.Fatal(err)
		}
		return r[0].Policies
	}
	list := played(adapterOptions(t, 8, decision.PredictedTTFT, decision.LeastRequests, LLMDAdapters))
	blind := adapterOptions(t, 8, decision.PredictedTTFT)
	blind.NoAdapterNames = true
	own := list[decision.PredictedTTFT]
	if without := played(blind)[decision.PredictedTTFT]; own.Mean > without.Mean/2 {
		t.Errorf("first tokens take %.2f s with the adapters' names and %.2f s without", own.Mean, without.Mean)
	}
	if least := list[decision.LeastRequests]; own.Mean > least.Mean/3 {
		t.Errorf("first tokens take %.2f s, and %.2f s by least requests", own.Mean, least.Mean)
	}
	if llmd := list[LLMDAdapters]; own.P99 > llmd.P99 || own.AnswerMean > llmd.AnswerMean {
		t.Errorf("p99 of first tokens and mean of answers are %.2f and %.2f s, those of llm-d's scorers %.2f and %.2f s", own.P99, own.AnswerMean, llmd.P99, llmd.AnswerMean)
	}
}

func TestTheTraceOfAdaptersIsSkewed(t *testing.T) {
	trace := adapterOptions(t, 1).Trace
	names := trace.adapterNames()
	if len(names) < 55 || len(names) > 64 {
		t.Errorf("the trace has %d adapters", len(names))
	}
	count := map[string]int{}
	for i := range trace.Calls {
		count[trace.Calls[i].Adapter]++
	}
	if hot, cold := count["adapter-0"], count["adapter-50"]; hot < 10*cold || hot < len(trace.Calls)/10 {
		t.Errorf("the hottest adapter has %d of %d calls, a cold one %d", hot, len(trace.Calls), cold)
	}
}

func TestTheScoreOfAffinityIsTheOneOfTheRule(t *testing.T) {
	for _, tt := range []struct {
		running, waiting []string
		want             float64
	}{
		{[]string{"a", "b"}, nil, 1}, {[]string{"b"}, nil, 0.8}, {nil, nil, 0.8}, {[]string{"b"}, []string{"b"}, 0.8},
		{[]string{"b", "c"}, []string{"a"}, 0.6}, {[]string{"b", "c"}, nil, 0}, {[]string{"b"}, []string{"c"}, 0},
	} {
		if got := affinity("a", 2, tt.running, tt.waiting); got != tt.want {
			t.Errorf("running %v, waiting %v: %v, want %v", tt.running, tt.waiting, got, tt.want)
		}
	}
	if slices.Contains(Rivals(), LLMDAdapters) || !slices.Contains(otherRules(), LLMDAdapters) {
		t.Error("the rule is for traces with adapters alone")
	}
}
