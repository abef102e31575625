package kvindex

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// keys are the keys of one event's blocks, zero where a block cannot be keyed. The memory is reused.
type keys struct {
	list []blockhash.Hash
	ids  []string // scratch
}

// none leaves n blocks without a key.
func (k *keys) none(n int) { k.list = append(k.list, make([]blockhash.Hash, n)...) }

// extend appends the keys of the event's blocks.
func (k *keys) extend(parent blockhash.Hash, ev *kvblock.Stored, salt uint64) {
	seed := blockhash.Namespace{Adapter: ev.Adapter}.Seed() + salt
	if ev.Items == nil {
		k.list = blockhash.Extend(k.list, parent, ev.Tokens, ev.BlockSize, seed)
		return
	}
	for i := range ev.Hashes {
		k.ids = k.ids[:0]
		if i < len(ev.Items) {
			for _, item := range ev.Items[i] {
				k.ids = append(k.ids, item.ID)
			}
		}
		tokens := ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize]
		parent = blockhash.Next(parent, blockhash.LocalWith(tokens, seed, k.ids))
		k.list = append(k.list, parent)
	}
}

// extendCoarse appends the keys at the ends of blocks that are several chain blocks long. With
// multimodal items the chain blocks' own items are unknown, so that such blocks have no key of their own.
func (k *keys) extendCoarse(parent blockhash.Hash, ev *kvblock.Stored, unit int, salt uint64) {
	seed := blockhash.Namespace{Adapter: ev.Adapter}.Seed() + salt
	var fine [1]blockhash.Hash
	for i := range ev.Hashes {
		tokens := ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize]
		for len(tokens) > 0 {
			parent = blockhash.Extend(fine[:0], parent, tokens[:unit], unit, seed)[0]
			tokens = tokens[unit:]
		}
		k.list = append(k.list, parent)
	}
}
