package chooser

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// found is the part of the prompt that the chosen rank holds, as far as that is known.
type found struct {
	index    *kvindex.Index
	decision *decision.Decision
	// unread and samples are the request's; certain is the part of the prompt that the rank held by its hashes alone, in tokens.
	unread  bool
	samples int
	certain uint32
	// stores counts the blocks that the rank had announced when the choice was made.
	stores uint64

	mu    sync.Mutex
	whole *whole // nil: the decision knew as much; guarded by mu
}

// whole is the part of the whole prompt that the rank holds.
type whole struct{ held, prompt int }

// later is the part found after the decision; nil for nothing.
func (f *found) later() *whole {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.whole
}

// match is how many tokens of the prompt with these hashes the rank holds now, without the blocks that this very request has stored.
func (f *found) match(hashes []blockhash.Hash, promptTokens int) (held int, ok bool) {
	if f.index == nil || len(hashes) == 0 {
		return 0, false
	}
	cand := f.decision.Pick()
	size := cand.BlockSize
	if size == 0 {
		return 0, false
	}
	overlaps := f.index.Match(nil, hashes)
	// After Match: a store that Match has seen counts as one since the choice.
	began, known := f.index.StoredSince(cand.Slot, f.stores, hashes)
	if !known {
		return 0, false
	}
	best := decision.Overlap{GPU: min(cand.GPU, f.certain), CPU: cand.CPU, Disk: cand.Disk}
	for _, o := range overlaps {
		// Beliefs since then are about this very request.
		if gpu := min(o.GPU-o.Believed, uint32(began)) * size; o.Slot == cand.Slot && !f.unread && gpu > best.GPU {
			best = decision.Overlap{GPU: gpu}
			if o.Believed == 0 && began == len(hashes) {
				best.CPU, best.Disk = o.CPU*size, o.Disk*size
			}
		}
	}
	best.Cut(f.reach(promptTokens))
	return int(best.Tokens()), true
}

// reach is how many tokens of a prompt the chosen rank's engine can take from its cache, in whole blocks.
func (f *found) reach(promptTokens int) int {
	cand := f.decision.Pick()
	size := int(cand.BlockSize)
	return f.index.Reach(cand.Slot, promptTokens) / size * size
}

// predictedCached is the number of cached tokens that the engine is expected to count.
func (f *found) predictedCached() int {
	cand, d := f.decision.Pick(), f.decision
	known := f.later()
	n, exact := d.PromptTokens, !d.Estimated
	if known != nil {
		n, exact = known.prompt, true
	}
	switch {
	case f.samples > 1 && exact && cand.BlockSize > 0 && !f.unread && !d.Keyless:
		return f.reach(n) // the later samples find blocks that the first one has stored
	case known != nil:
		return known.held
	}
	return d.PromptTokens - int(cand.Uncached)
}

// claimed is how much of the prompt the rank claimed to hold, in tokens, as far as that is known exactly.
func (f *found) claimed() int {
	if f.later() == nil && f.decision.Estimated || f.decision.Keyless || f.unread {
		return 0
	}
	return max(f.predictedCached(), int(f.decision.Pick().Claimed))
}
