package main

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/replay"
)

func TestTheResultsReplaceThoseBefore(t *testing.T) {
	page := "head\n" + begins + "old\n" + ends + "tail\n"
	once, err := between(page, "new\n")
	if err != nil {
		t.Fatal(err)
	}
	twice, err := between(once, "new\n")
	if err != nil || twice != once || strings.Contains(once, "old") || !strings.HasPrefix(once, "head\n") || !strings.HasSuffix(once, "tail\n") {
		t.Errorf("%q, then %q, %v", once, twice, err)
	}
	if _, err := between("head\n"+begins, "new"); err == nil {
		t.Error("a page without the end mark was accepted")
	}
}

func TestARowComparesWithTheBestOfTheOthers(t *testing.T) {
	report := &replay.Report{Trace: "x_trace", Replicas: 8, Load: 0.95, Policies: map[decision.Policy]replay.PolicyReport{
		decision.PredictedTTFT: {Numbers: replay.Numbers{Mean: 1.5, P99: 11, AnswerMean: 9}, VsOracle: 0.75, SaturationVsOracle: 1},
		decision.OverlapLoad:   {Numbers: replay.Numbers{Mean: 2, P99: 20, AnswerMean: 8}},
		decision.LeastTokens:   {Numbers: replay.Numbers{Mean: 3, P99: 10, AnswerMean: 12}},
		decision.Random:        {Numbers: replay.Numbers{Mean: 1, Abandoned: true}},
	}}
	// Policies that were not played have zeros; they would win everything.
	for _, name := range decision.Policies() {
		if _, ok := report.Policies[name]; !ok {
			report.Policies[name] = replay.PolicyReport{Numbers: replay.Numbers{Abandoned: true}}
		}
	}
	want := "| x | 8 | 0.95 | **1.50** / 11.0 | overlap-load: 2.00 | 25 % | 1.10 | 9.0 | 8.0 | 0.75 | 1.00 |\n"
	if got := row(report); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
