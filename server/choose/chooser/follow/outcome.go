package follow

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Outcomes receives the ends of decisions.
type Outcomes interface{ Outcome(o decision.Outcome) }

// Outcome reports the end of a decision to the record.
type Outcome struct {
	ask.EndOnly
	ask.Reporting
	Record   Outcomes
	Decision *decision.Decision
	Found    *Found
}

// Ended implements Observer.
func (o *Outcome) Ended(end *ask.End) {
	d, cand := o.Decision, o.Decision.Pick()
	out := decision.Outcome{
		ID: d.ID, Attempt: d.Attempt, Replica: cand.Replica, Rank: cand.Rank, Slot: cand.Slot, End: end.Result.End,
		Predicted: clock.Duration(d.PredictedTTFT()), Duration: end.At.Sub(d.At),
		PromptTokens: end.PromptTokens, OutputTokens: end.OutputTokens, CachedTokens: end.CachedTokens, Counted: end.Counted,
		PredictedCached: o.Found.predictedCached(), AskedBy: d.AskedBy, External: o.Leased,
	}
	if w := d.Split(); w != nil {
		out.PredictedCached = int(w.Held)
	}
	if by := end.ServedBy; by != "" && by != cand.Replica {
		out.Replica, out.Rank, out.Slot = by, 0, replica.NoSlot // which rank of it is not known
	}
	if !end.First.IsZero() && o.SeesFirst() {
		out.TTFT = end.First.Sub(d.At)
	}
	o.Record.Outcome(out)
}
