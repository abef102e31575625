package decision_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestWordsHaveOneTextEach(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range decision.Vetoes() {
		if seen[v.String()] || v.String() == "" || v.String() == "unknown" {
			t.Errorf("veto %d is %q", v, v)
		}
		seen[v.String()] = true
	}
	clear(seen)
	for e := decision.EndCompleted; e <= decision.EndUnserved; e++ {
		if seen[e.String()] || e.String() == "" || e.String() == "unknown" {
			t.Errorf("end %d is %q", e, e)
		}
		seen[e.String()] = true
	}
	if decision.Policy("nonsense").Known() || !decision.Policies()[0].Known() {
		t.Error("Known() must tell policies from nonsense")
	}
	if !decision.PredictedTTFT.ReadsCache() || decision.RoundRobin.ReadsCache() || decision.Policy("").ReadsCache() {
		t.Error("ReadsCache() must tell the policies that score overlap from the others")
	}
}
