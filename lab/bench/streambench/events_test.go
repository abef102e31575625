package streambench

import (
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

// told is what a router knows of the fake upstream's cache from its events alone: each block with its parent and tokens.
type told struct {
	t       *testing.T
	decoder vllm.Decoder
	blocks  map[kvblock.EngineHash]kvblock.Stored
	batches int
}

func (r *told) take(payload []byte) {
	r.batches++
	batch, err := r.decoder.Decode(payload)
	if err != nil || batch.UnknownFields+batch.UnknownTags+batch.Misfits > 0 {
		r.t.Fatalf("Decode() = %+v, %v", batch, err)
	}
	for _, e := range batch.Events {
		for _, hash := range e.Removed.Hashes {
			if _, ok := r.blocks[hash]; !ok {
				r.t.Errorf("%x is removed, and was not stored", hash)
			}
			delete(r.blocks, hash)
		}
		parent, has := e.Stored.Parent, e.Stored.HasParent
		for i, hash := range e.Stored.Hashes {
			r.blocks[hash] = kvblock.Stored{Parent: parent, HasParent: has, Tokens: slices.Clone(e.Stored.Tokens[i*blockTokens : (i+1)*blockTokens])}
			parent, has = hash, true
		}
	}
}

// somePrompt is n blocks, of which the first common ones are those of all prompts.
func somePrompt(seed uint32, common, n int) []uint32 {
	list := make([]uint32, n*blockTokens+3)
	for i := range list {
		if list[i] = uint32(i); i >= common*blockTokens {
			list[i] += seed * 1_000_000
		}
	}
	return list
}

func TestEventsSayWhatTheFakeUpstreamHolds(t *testing.T) {
	r := &told{t: t, blocks: map[kvblock.EngineHash]kvblock.Stored{}}
	c := newPrefixCache(20, r.take)
	c.served(somePrompt(1, 4, 6))
	c.served(somePrompt(2, 4, 6))
	if len(r.blocks) != 8 || r.batches != 2 {
		t.Errorf("two prompts of 6 blocks, 4 of them common: %d blocks in %d batches", len(r.blocks), r.batches)
	}
	c.served(somePrompt(2, 4, 6))
	if r.batches != 2 {
		t.Error("a prompt that is in the cache was published again")
	}
	roots := 0
	for hash, b := range r.blocks {
		if !b.HasParent {
			roots++
		} else if _, ok := r.blocks[b.Parent]; !ok {
			t.Errorf("block %x has an unknown parent", hash)
		}
		if want := chained(uint64(b.Parent), b.Tokens); uint64(hash) != want {
			t.Errorf("block %x holds the tokens of %x", hash, want)
		}
	}
	if roots != 1 {
		t.Errorf("%d roots, want the one of the common beginning", roots)
	}
	for seed := range uint32(10) {
		c.served(somePrompt(10+seed, 0, 7))
	}
	if len(r.blocks) != 20 {
		t.Errorf("%d blocks are held, want as many as there is room for", len(r.blocks))
	}
}
