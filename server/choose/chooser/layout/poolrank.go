package layout

import (
	"cmp"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Rank has the facts about a rank from its replica.
type Rank struct {
	Replica replica.ID
	Slot    replica.Slot
	Owner   int32 // in replicas
	Index   uint16
	Drained bool // it takes nothing new while other ranks of the replica do
	Blocks  uint32
	// BlockSize is the block size in tokens as the replica reports it, or the usual one.
	BlockSize uint32
	Budget    float64 // tokens per step
	Listed    int     // LoRA adapters that the replica serves
}

// DefaultBlock is a rank's block size until it is known.
const DefaultBlock = 16

// newRank has the facts about rank index of r, the replica owner of the pool, which serves so many LoRA adapters.
func newRank(r *replica.Replica, owner, index, listed int) Rank {
	return Rank{
		Replica: r.ID, Slot: r.Slots[index], Owner: int32(owner), Index: uint16(index), Drained: r.IsRankDrained(index),
		Blocks: uint32(max(0, r.Blocks)), BlockSize: uint32(cmp.Or(r.BlockSize, DefaultBlock)), Budget: Budget(r), Listed: listed,
	}
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
