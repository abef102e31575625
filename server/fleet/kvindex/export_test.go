package kvindex

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// BlockSizes returns the distinct block sizes of all ranks in ascending order.
func (ix *Index) BlockSizes() []int {
	var sizes []int
	for slot, r := range ix.all() {
		if r == nil {
			continue
		}
		if n := ix.BlockSize(replica.Slot(slot)); n > 0 && !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	return sizes
}

// PathBlock lists the holders of one block of a prompt.
type PathBlock struct {
	Hash blockhash.Hash
	// Tiers lists the holding ranks of each tier, Believed those that are believed to hold it.
	Tiers    [kvblock.Tiers][]replica.Slot
	Believed []replica.Slot
}

// Path lists for each block of a prompt the ranks that hold it: what Match sees, without its shortcuts.
func (ix *Index) Path(hashes []blockhash.Hash) []PathBlock {
	for {
		epoch := ix.sets.epoch.Load()
		path := make([]PathBlock, len(hashes))
		for i, h := range hashes {
			path[i].Hash = h
			for t, p := range ix.tiers {
				path[i].Tiers[t] = ix.holders(p.get(spread(h)))
			}
			path[i].Believed = ix.holders(ix.beliefs.get(spread(h)))
		}
		for at := 0; at < len(hashes); {
			e := ix.guesses.heads.get(hashes[at])
			if e == nil {
				break
			}
			for range common(e.hashes, hashes[at:]) {
				gpu := &path[at].Tiers[kvblock.TierGPU]
				*gpu = append(*gpu, ix.holders(e.holders.Load())...)
				slices.Sort(*gpu)
				at++
			}
		}
		if ix.sets.epoch.Load() == epoch {
			return path
		}
	}
}

// holders lists the ranks of a set.
func (ix *Index) holders(id uint32) []replica.Slot {
	if id == 0 {
		return nil
	}
	words := make([]uint64, ix.sets.words)
	ix.sets.load(id, words)
	var list []replica.Slot
	for slot := range replica.Slot(64 * len(words)) {
		if words[slot/64]>>(slot%64)&1 != 0 {
			list = append(list, slot)
		}
	}
	return list
}

var ErrSnapshot = errSnapshot

// GuessBytes is the memory of the extents that live.
func (ix *Index) GuessBytes() int64 { return ix.guesses.bytes.Load() }

// LimitSets leaves the index n ids for sets of several ranks.
func (ix *Index) LimitSets(n int) { ix.sets.limit = uint32(singles + n) }

// Recount counts the pairs of a rank and a block that the tables name: facts of all tiers, guesses and beliefs. Nothing may change meanwhile.
func (ix *Index) Recount() (facts [kvblock.Tiers]int64, guesses, beliefs int64) {
	count := func(p *plane) (n int64) {
		for i := range p.tabs {
			for _, w := range p.tabs[i].Load().slots {
				n += int64(len(ix.holders(uint32(w & idMask))))
			}
		}
		return n
	}
	for t, p := range ix.tiers {
		facts[t] = count(p)
	}
	for i := range ix.guesses.heads.tabs {
		if tab := ix.guesses.heads.tabs[i].Load(); tab != nil {
			for at := range *tab {
				if e := (*tab)[at].at.Load(); e != nil {
					guesses += int64(len(e.hashes) * len(ix.holders(e.holders.Load())))
				}
			}
		}
	}
	return facts, guesses, count(ix.beliefs)
}

// Guessed counts what each rank is taken to hold by its own account.
func (ix *Index) Guessed() (n int64) {
	for i := range ix.guesses.ranks {
		n += int64(ix.guesses.ranks[i].blocks)
	}
	return n
}
