package decision_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

func TestADecisionSurvivesJSON(t *testing.T) {
	want := decision.Decision{
		ID: "a", Attempt: 2, At: time.Unix(1, 2).UTC(), Model: "m", Policy: decision.PredictedTTFT, Reason: decision.ReasonTie, PromptTokens: 100,
		Candidates: []decision.Candidate{
			{Replica: "r0", Feed: kvblock.FeedExact, GPU: 64, Backlog: 0.1234567890123, Cost: 1e-9, EngineWaiting: -1, KVUsage: -1},
			{Replica: "r1", Slot: 1, Veto: decision.VetoCap},
		},
		Margin: 0.3, Omega: 1.7, Seed: 1<<63 + 1, Took: 7, Shadow: &decision.Shadow{Policy: decision.RoundRobin, Regret: -0.5},
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got decision.Decision
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("after JSON: %+v\nwant %+v", got, want)
	}
}

func TestWordsHaveOneTextEach(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range decision.Vetoes() {
		var back decision.Veto
		if err := back.UnmarshalText([]byte(v.String())); err != nil || back != v || seen[v.String()] {
			t.Errorf("veto %d reads back from %q as %d, %v", v, v, back, err)
		}
		seen[v.String()] = true
	}
	for e := decision.EndCompleted; e <= decision.EndRemoved; e++ {
		var back decision.End
		if err := back.UnmarshalText([]byte(e.String())); err != nil || back != e {
			t.Errorf("end %d reads back from %q as %d, %v", e, e, back, err)
		}
	}
	if decision.Policy("nonsense").Known() || !decision.Policies()[0].Known() {
		t.Error("Known() must tell policies from nonsense")
	}
	if !decision.PredictedTTFT.ReadsCache() || decision.RoundRobin.ReadsCache() || decision.Policy("").ReadsCache() {
		t.Error("ReadsCache() must tell the policies that score overlap from the others")
	}
}
