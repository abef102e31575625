package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// causeTarget is the Refused.Cause of a request with targets that no rank can keep.
const causeTarget = "target"

// unreachable rejects a request, under the objective slo, that even the best rank would serve too
// late by more than the uncertainty of its speed. Serving it would make other requests late and gain nothing.
// Where the targets are the model's and not the request's own, and the fleet has room, a request that is late by its own
// prefill is still served: what it leaves in the cache helps others to keep theirs.
func (c *Chooser) unreachable(d *decision.Decision, req *Request) error {
	pick := d.Pick()
	if d.Objective != decision.ObjectiveSLO || d.DryRun || pick == nil || pick.Late <= max(leastLate, pick.Spread) {
		return nil
	}
	if req.Options.Targets == (decision.Targets{}) && d.Load < roomBelow && pick.Backlog+pick.Planned < pick.Prefill {
		return nil
	}
	c.metrics.unreachable.Add(1)
	late := time.Duration(pick.Late * float64(d.Targets.TTFT))
	return &Refused{Cause: causeTarget, RetryAfter: min(max(late, time.Second), maxRetryAfter)}
}

const (
	// leastLate is the share by which a target must be missed at least.
	leastLate = 0.1
	// roomBelow is the fleet's load by prefill below which it has room for late requests. In the player, 0.5 kept the most
	// answers within their targets at all loads; 0.65 and 0.8 lost some on conversations, 0 on documents.
	roomBelow = 0.5
	// maxRetryAfter bounds the hint for a retry.
	maxRetryAfter = time.Minute
)
