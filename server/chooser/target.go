package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/decision"
)

// causeTarget is the Refused.Cause of a request whose targets no rank can keep.
const causeTarget = "target"

// unreachable refuses a request, under the objective slo, that even the best rank would serve too
// late, and surely so: by more than what is uncertain about its speed. To serve it would make others
// late and gain nothing.
func (c *Chooser) unreachable(d *decision.Decision) error {
	pick := d.Pick()
	if d.Objective != decision.ObjectiveSLO || d.DryRun || pick == nil || pick.Late <= max(leastLate, pick.Spread) {
		return nil
	}
	c.metrics.unreachable.Add(1)
	late := time.Duration(pick.Late * float64(d.Targets.TTFT))
	return &Refused{Cause: causeTarget, RetryAfter: min(max(late, time.Second), maxRetryAfter)}
}

const (
	// leastLate is the share by which a target must be missed at least.
	leastLate = 0.1
	// maxRetryAfter bounds the hint for a new try.
	maxRetryAfter = time.Minute
)
