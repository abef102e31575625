package chooser

import (
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// poolRank has the facts about a rank from its replica.
type poolRank struct {
	replica replica.ID
	slot    replica.Slot
	owner   int32 // in replicas
	index   uint16
	blocks  uint32
	budget  float64 // tokens per step
}

// defaultBudget is the tokens per step when the engine does not report them.
const defaultBudget = 2048

// budget is the number of tokens that a replica's engine computes in one step.
func budget(r *replica.Replica) float64 {
	if r.MaxBatchedTokens > 0 {
		return float64(r.MaxBatchedTokens)
	}
	return defaultBudget
}
