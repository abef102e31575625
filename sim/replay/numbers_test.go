package replay

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Two answers whose times are known to the last digit.
func TestNumbersDescribeTheWholeAnswer(t *testing.T) {
	trace := &Trace{Name: "two", Chunk: 512, Calls: []Call{{In: 512, Out: 11, Prev: -1}, {In: 1536, Out: 1, Prev: -1}}}
	s := &sim{
		trace: newWorkload(trace, 512), outcomes: outcomes{arrived: []float64{1, 2}, first: []float64{2, 6}, done: []float64{4, 6}, cached: []int{256, 256}},
	}
	n := s.numbers(Goal{TTFT: 2, TPOT: 0.2})
	for name, tt := range map[string]struct{ got, want float64 }{
		"TTFT mean": {n.Mean, 2.5}, "answer mean": {n.AnswerMean, 3.5}, "answer p50": {n.AnswerP50, 4}, "answer p99": {n.AnswerP99, 4},
		"TPOT p50": {n.TPOTP50, 0.2}, "TPOT p99": {n.TPOTP99, 0.2}, "goodput": {n.Goodput, 0.5}, "hit rate": {n.HitRate, 0.25},
		"longest TTFT": {n.Longest, 4},
	} {
		if math.Abs(tt.got-tt.want) > 1e-12 {
			t.Errorf("%s is %v, want %v", name, tt.got, tt.want)
		}
	}
	if got := s.numbers(Goal{TTFT: 5, TPOT: 0.1}).Goodput; got != 0.5 {
		t.Errorf("goodput %v: only the answer of one token keeps 100 ms per token", got)
	}
	if got := s.numbers(Goal{TTFT: 5, TPOT: 1}).Goodput; got != 1 {
		t.Errorf("goodput %v, want both", got)
	}
}

func TestReportsHaveTheWholeAnswerAndThePredictions(t *testing.T) {
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", 400), Load: 0.7}, Engines: Engines{Replicas: 4}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{NoSaturation: true, Goal: Goal{TTFT: 1e9, TPOT: 1e9}}}
	r := play(t, o)
	p := r.Policies[decision.PredictedTTFT]
	if p.Goodput != 1 || p.AnswerMean <= p.Mean || p.AnswerP99 < p.AnswerP50 || p.TPOTP50 < 0.01 || p.TPOTP99 < p.TPOTP50 {
		t.Errorf("%+v", p.Numbers)
	}
	if p.Longest < p.P99 {
		t.Errorf("the longest first token comes after %v s, p99 is %v s", p.Longest, p.P99)
	}
	if q := p.Predicted; q.P10 <= 0 || q.P10 > q.P50 || q.P50 > q.P90 || q.P50 < 0.3 || q.P50 > 3 {
		t.Errorf("predicted over actual: %+v", q)
	}
	if r.Oracle.Predicted != (Quantiles{}) {
		t.Error("the oracle predicts nothing")
	}
	var text bytes.Buffer
	if err := r.Table(&text); err != nil || !strings.Contains(text.String(), "answer mean") {
		t.Errorf("table %q, %v", text.String(), err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{`"answer_mean_s"`, `"answer_p99_s"`, `"tpot_p50_s"`, `"tpot_p99_s"`, `"goodput"`, `"ttft_max_s"`, `"predicted_over_actual"`, `"goal"`} {
		if !bytes.Contains(data, []byte(field)) {
			t.Errorf("%s is missing in %s", field, data)
		}
	}
}
