package server

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/kvblock"
	"github.com/kvpilot/kvpilot/server/kvindex"
	"github.com/kvpilot/kvpilot/server/replica"
)

// beliefFor is how long the index believes that what was just routed will be in the rank's cache,
// when no event has confirmed it by then. It covers a long prefill.
const beliefFor = 30 * time.Second

// index is the block index as the chooser asks it.
type index struct {
	*kvindex.Index
	scratch sync.Pool
}

func newIndex(ix *kvindex.Index) *index {
	return &index{Index: ix, scratch: sync.Pool{New: func() any { return new([]kvindex.Overlap) }}}
}

// Match appends the ranks that hold a beginning of hashes.
func (ix *index) Match(dst []chooser.Overlap, hashes []blockhash.Hash) []chooser.Overlap {
	held := ix.scratch.Get().(*[]kvindex.Overlap)
	*held = ix.Index.Match((*held)[:0], hashes)
	for _, o := range *held {
		dst = append(dst, chooser.Overlap{Slot: o.Slot, GPU: o.GPU, CPU: o.CPU, Disk: o.Disk})
	}
	ix.scratch.Put(held)
	return dst
}

// Routed tells that the blocks were sent to a rank: one with events is believed to get them soon,
// one without is taken to have them until its capacity pushes them out.
func (ix *index) Routed(slot replica.Slot, hashes []blockhash.Hash, now time.Time) {
	if ix.State(slot) == kvblock.FeedNone {
		ix.Index.Routed(slot, hashes)
		return
	}
	ix.Predict(slot, hashes, now.Add(beliefFor))
}

// textBeliefFor is how long a rank is believed to hold a prompt that is known by its text only,
// while no tokenizer answers: long enough for the next turn of a conversation.
const textBeliefFor = 10 * time.Minute

// believeText notes where a prompt went whose keys were made of its text.
func (ix *index) believeText(slot replica.Slot, hashes []blockhash.Hash) {
	if ix.State(slot) != kvblock.FeedNone {
		ix.Predict(slot, hashes, time.Now().Add(textBeliefFor))
	}
}
