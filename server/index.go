package server

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// index is the block index with what only the server asks of it.
type index struct {
	*kvindex.Index
}

func newIndex(ix *kvindex.Index) *index { return &index{Index: ix} }

// textBeliefFor is how long a rank is believed to hold a prompt that is known by its text only,
// while no tokenizer answers: long enough for the next turn of a conversation.
const textBeliefFor = 10 * time.Minute

// believeText notes where a prompt went whose keys were made of its text.
func (ix *index) believeText(slot replica.Slot, hashes []blockhash.Hash) {
	if ix.State(slot) != kvblock.FeedNone {
		ix.Predict(slot, hashes, time.Now().Add(textBeliefFor))
	}
}
