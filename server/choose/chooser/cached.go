package chooser

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Whole reports the prompt's length and what the chosen rank holds of it, now that all its ids are known. The
// decision was made with their beginning and stays as it is; the prediction that the outcome is compared with
// counts on what is found now. What the engine has stored of this very prompt since does not count. It returns
// how many of the prompt's tokens the rank holds by that, and whether that is known.
func (c *Choice) Whole(hashes []blockhash.Hash, promptTokens int) (held int, ok bool) {
	size := int(c.Decision.Pick().BlockSize)
	if size <= 0 || len(hashes) == 0 {
		return 0, false
	}
	cand := c.Decision.Pick()
	overlaps := c.chooser.params.Index.Match(nil, hashes)
	// After Match: a store that Match has seen counts as one since the choice.
	began, known := c.chooser.params.Index.StoredSince(c.Slot, c.stores, hashes)
	if !known {
		return 0, false
	}
	found := decision.Overlap{GPU: min(cand.GPU, c.certain), CPU: cand.CPU, Disk: cand.Disk}
	for _, o := range overlaps {
		// What is believed since is this very request's.
		if gpu := min(o.GPU-o.Believed, uint32(began)) * uint32(size); o.Slot == c.Slot && !c.unread && gpu > found.GPU {
			found = decision.Overlap{GPU: gpu}
			if o.Believed == 0 && began == len(hashes) {
				found.CPU, found.Disk = o.CPU*uint32(size), o.Disk*uint32(size)
			}
		}
	}
	found.Cut(c.reach(promptTokens))
	held = int(found.Tokens())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began || !c.first.IsZero() || c.ended {
		return 0, false // the engine may have stored the prompt itself by now
	}
	c.whole = &whole{held: held, prompt: promptTokens}
	return held, true
}

// whole is what Whole found.
type whole struct{ held, prompt int }

// Held is how many of the prompt's tokens the chosen rank was believed to hold, by the best that is known.
func (c *Choice) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.whole != nil {
		return c.whole.held
	}
	cand := c.Decision.Pick()
	if cand == nil {
		return 0
	}
	return int(cand.Overlap.Tokens())
}

// reach is how many tokens of a prompt the chosen rank's engine can take from its cache, in whole blocks.
func (c *Choice) reach(promptTokens int) int {
	size := int(c.Decision.Pick().BlockSize)
	return c.chooser.params.Index.Reach(c.Slot, promptTokens) / size * size
}

// predictedCached is the number of cached tokens that the engine is expected to count.
func (c *Choice) predictedCached() int {
	cand, d := c.Decision.Pick(), c.Decision
	c.mu.Lock()
	known := c.whole
	c.mu.Unlock()
	n, exact := d.PromptTokens, !d.Estimated
	if known != nil {
		n, exact = known.prompt, true
	}
	switch {
	case c.samples > 1 && exact && cand.BlockSize > 0 && !c.unread && !d.Keyless:
		return c.reach(n) // the later samples find what the first one has stored
	case known != nil:
		return known.held
	}
	return d.PromptTokens - int(cand.Uncached)
}
