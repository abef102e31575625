package evaluate

import (
	"math"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// crowding is the predicted wait for KV memory, beyond the prefills before the request's first token: until the requests on the rank leave room
// for this one and its answer. Blocks are taken as tokens are computed, so the room is needed when the prompt is, not before.
func (e *Evaluator) crowding(cand *decision.Candidate, d *decision.Decision, l *load.RankLoad) float64 {
	size := float64(cand.BlockSize)
	used, capacity := float64(l.UsedBlocks)*size, float64(cand.Blocks)*size
	missing := d.PromptTokens - int(cand.GPU)
	excess := used + float64(missing+d.ExpectedOutput) - capacity
	if capacity == 0 || excess <= 0 {
		return 0
	}
	answers := min(used, float64(l.OutputTokens))
	wait := untilFree(used-answers, answers, excess) * e.Residence.Get()
	return max(0, wait-cand.Backlog-cand.Planned-decision.PrefillTime(cand.TokenTime, cand.Bend, float64(cand.GPU), float64(missing)))
}

// untilFree is the time, as a share of the mean time that requests decode, until requests that hold prompts of p tokens and answers of a
// tokens hold excess tokens less. Of n requests of all ages n·(1-x) are left after x. The remaining answers have grown by the share x, so prompts
// leave p·x tokens free, answers a·x²: memory full of answers hardly empties at first. Nothing is waited for on an empty rank.
func untilFree(p, a, excess float64) float64 {
	root := math.Sqrt(p*p + 4*a*excess)
	if p+root <= 0 {
		return 0
	}
	return 2 * excess / (p + root)
}
