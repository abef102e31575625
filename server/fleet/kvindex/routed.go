package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Routed notes that a prompt was sent to a rank that publishes no events: the rank is taken to
// hold its blocks until as many others as its cache has room for were routed there later. For
// ranks with events it does nothing. The hashes MUST be a chain from a prompt's first block on; they are copied.
func (ix *Index) Routed(slot replica.Slot, hashes []blockhash.Hash) {
	if len(hashes) == 0 {
		return
	}
	ix.locked(slot, func(r *rank) {
		if r.state == kvblock.FeedNone && len(r.parts) == 0 {
			r.routed(hashes)
		}
	})
}

// routed makes the hashes the rank's newest guesses, within its capacity.
func (r *rank) routed(hashes []blockhash.Hash) {
	capacity := r.info.Capacity
	if capacity <= 0 {
		capacity = r.ix.config.DefaultCapacity
	}
	r.guessed = true
	more := r.ix.guesses.routed(&r.writer, hashes, capacity)
	r.entries.Add(int64(more))
}

// dropGuessed forgets guesses from routed prompts.
func (r *rank) dropGuessed() {
	if !r.guessed {
		return
	}
	r.guessed = false
	r.entries.Add(int64(-r.ix.guesses.drop(&r.writer)))
}
