package layout

import (
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Rank has the facts about a rank from its replica.
type Rank struct {
	Replica replica.ID
	Slot    replica.Slot
	Owner   int32 // in replicas
	Index   uint16
	Blocks  uint32
	Budget  float64 // tokens per step
	Listed  int     // LoRA adapters that the replica serves
}

// DefaultBudget is the tokens per step when the engine does not report them.
const DefaultBudget = 2048

// Budget is the number of tokens that a replica's engine computes in one step.
func Budget(r *replica.Replica) float64 {
	if r.MaxBatchedTokens > 0 {
		return float64(r.MaxBatchedTokens)
	}
	return DefaultBudget
}
