package follow

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Found is the part of the prompt that the chosen rank holds, as far as that is known.
type Found struct {
	Index    *kvindex.Index
	Decision *decision.Decision
	// Unread and samples are the request's; certain is the part of the prompt that the rank held by its hashes alone, in tokens.
	Unread  bool
	Samples int
	Certain uint32
	// Stores counts the blocks that the rank had announced when the choice was made.
	Stores uint64

	Mu    sync.Mutex
	Whole *Whole // nil: the decision knew as much; guarded by mu
}

// Whole is the part of the whole prompt that the rank holds.
type Whole struct{ Held, Prompt int }

// Later is the part found after the decision; nil for nothing.
func (f *Found) Later() *Whole {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Whole
}

// Match is how many tokens of the prompt with these hashes the rank holds now, without the blocks that this very request has stored.
func (f *Found) Match(hashes []blockhash.Hash, promptTokens int) (held int, ok bool) {
	if f.Index == nil || len(hashes) == 0 {
		return 0, false
	}
	cand := f.Decision.Pick()
	size := cand.BlockSize
	if size == 0 {
		return 0, false
	}
	overlaps := f.Index.Match(nil, hashes)
	// After Match: a store that Match has seen counts as one since the choice.
	began, known := f.Index.StoredSince(cand.Slot, f.Stores, hashes)
	if !known {
		return 0, false
	}
	best := decision.Overlap{GPU: min(cand.GPU, f.Certain), CPU: cand.CPU, Disk: cand.Disk}
	for _, o := range overlaps {
		// Beliefs since then are about this very request.
		if gpu := min(o.GPU-o.Believed, uint32(began)) * size; o.Slot == cand.Slot && !f.Unread && gpu > best.GPU {
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
func (f *Found) reach(promptTokens int) int {
	cand := f.Decision.Pick()
	size := int(cand.BlockSize)
	return f.Index.Reach(cand.Slot, promptTokens) / size * size
}

// predictedCached is the number of cached tokens that the engine is expected to count.
func (f *Found) predictedCached() int {
	cand, d := f.Decision.Pick(), f.Decision
	known := f.Later()
	n, exact := d.PromptTokens, !d.Estimated
	if known != nil {
		n, exact = known.Prompt, true
	}
	switch {
	case f.Samples > 1 && exact && cand.BlockSize > 0 && !f.Unread && !d.Keyless:
		return f.reach(n) // the later samples find blocks that the first one has stored
	case known != nil:
		return known.Held
	}
	return d.PromptTokens - int(cand.Uncached)
}

// claimed is how much of the prompt the rank claimed to hold on its GPU, in tokens, as far as that is known exactly. Claims about other tiers have
// a share of their own: see Loaded.
func (f *Found) claimed() int {
	if f.Later() == nil && f.Decision.Estimated || f.Decision.Keyless || f.Unread {
		return 0
	}
	cand, claim := f.Decision.Pick(), f.predictedCached()
	if cand.CPU|cand.Disk != 0 {
		claim = min(claim, int(cand.GPU))
	}
	return max(claim, int(cand.Claimed))
}
