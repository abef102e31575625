package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/lab/bench/decidebench"
)

func TestDecisionFiguresArePrinted(t *testing.T) {
	var out bytes.Buffer
	r := &decidebench.Result{Cases: []decidebench.Case{{Name: "grpc", CPU: 81, Rate: 9123, P50: 210, P99: 480}}, CPURatio: .57, CPURatioBook: .61}
	if err := printDecideBench(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"81 µs", "9123/s", "p50 210", "p99 480", "0.57", "release 0.61"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := printDecideBench(&out, &decidebench.Result{Cases: r.Cases}); err != nil || strings.Contains(out.String(), "gRPC by REST") {
		t.Errorf("a case alone: %v\n%s", err, out.String())
	}
	if err := execute(t, "decide", "--ranks", "0"); err == nil {
		t.Error("no ranks: no error")
	}
	if err := execute(t, "decide", "--cases", "soap"); err == nil || !strings.Contains(err.Error(), "soap") {
		t.Errorf("a case that there is not: %v", err)
	}
}
