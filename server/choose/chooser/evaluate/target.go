package evaluate

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Reach rejects a request that even the best rank would serve too late for its targets, by more than the uncertainty of
// its speed. Serving it would make other requests late and gain nothing. The targets are the request's own, or under the
// objective slo the model's. Where they are the model's, and the fleet has room, a request that is late by its own
// prefill is still served: its blocks in the cache help others to keep theirs.
func (e *Evaluator) Reach(d *decision.Decision, req *ask.Request) error {
	own := req.Options.Targets.Set()
	if !own && d.Objective != decision.ObjectiveSLO || d.DryRun || d.Pick() == nil {
		return nil
	}
	best := d.Pick() // predicted-ttft puts ranks that keep the targets first; other policies do not look at them
	if d.Policy != decision.PredictedTTFT {
		for i := range d.Candidates {
			if cand := &d.Candidates[i]; cand.Veto == decision.VetoNone && cand.Late < best.Late {
				best = cand
			}
		}
	}
	missed := best.Late
	if w := d.Split(); w != nil {
		missed = 0
		if t := d.Targets.TTFT.Seconds(); t > 0 {
			missed = (d.Waited.Seconds()+w.TTFT)/t - 1
		}
		if t := d.Targets.TPOT.Seconds(); t > 0 {
			missed = max(missed, best.TPOT/t-1)
		}
	}
	if missed <= max(LeastLate, best.Spread) {
		return nil
	}
	if !own && d.Load < roomBelow && best.Backlog+best.Planned < best.Prefill {
		return nil
	}
	e.Unreachable.Add(1)
	late := time.Duration(missed * float64(d.Targets.TTFT))
	return &ask.Refused{Cause: ask.CauseTarget, RetryAfter: min(max(late, time.Second), maxRetryAfter)}
}

const (
	// LeastLate is the share by which a target must be missed at least.
	LeastLate = 0.1
	// roomBelow is the fleet's load by prefill below which it has room for late requests. In the player, 0.5 kept the most
	// answers within their targets at all loads; 0.65 and 0.8 lost some on conversations, 0 on documents.
	roomBelow = 0.5
	// maxRetryAfter bounds the hint for a retry.
	maxRetryAfter = time.Minute
)
