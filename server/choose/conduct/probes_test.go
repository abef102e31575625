package conduct

import (
	"testing"
	"time"
)

// A probe that shows no better rank doubles the time until the next one, up to two minutes; a long request is a probe later than a short one.
func TestProbesOfARankThatStaysSlowGetRarer(t *testing.T) {
	now := time.Unix(100, 0)
	var p probes
	p.begin(now)
	for i, want := range []float64{10, 20, 40, 80, 120, 120} {
		due := now.Add(time.Duration(want) * time.Second)
		if p.waived(shortProbe, due.Add(-1)) || !p.waived(shortProbe, due) || p.waived(shortProbe+1, due) || !p.waived(shortProbe+1, due.Add(longProbe)) {
			t.Errorf("probe %d is not due after %v s", i, want)
		}
		now = due
		p.good = 1
		if p.failed(); p.good != 0 {
			t.Error("good probes count although one failed in between")
		}
		p.next(now)
	}
}
