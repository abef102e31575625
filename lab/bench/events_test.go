package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/lab/bench/eventbench"
)

func TestEventFiguresArePrinted(t *testing.T) {
	var out bytes.Buffer
	r := &eventbench.Result{Engines: 3, BlocksPerS: 2.5e6, BlocksPerCPUS: 1.25e6, VisibleP50: 120, VisibleP99: 1234, FromDueP99: 2345, OversleepP99: 77}
	if err := printEventBench(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"engines        3", "2.50 M", "1.25 M", "p50 120", "p99 1234", "p99 2345", "p99 77"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if err := execute(t, "events", "--engines", "0"); err == nil {
		t.Error("no engines: no error")
	}
}
