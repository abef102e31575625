package feed

import (
	"math/bits"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// Layout is a set: the fields that a vLLM version writes, and how.
type Layout uint16

const (
	// Maps writes each event as a map with names and without nil defaults, not as an array.
	Maps Layout = 1 << iota
	// SignedHashes writes hashes as signed integers (up to 0.10.1); Bytes writes them whole, as
	// byte strings (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0). Else they are unsigned integers.
	SignedHashes
	Bytes
	// The fields that came with time.
	Medium
	LoRAName
	ExtraKeys
	ItemOffsets
	Group
	SpecKind
	// Locality says whether a tier is the engine's own.
	Locality
	// Lie shifts every token id: an engine whose events do not say what it holds.
	Lie
)

func (l Layout) has(part Layout) bool { return l&part != 0 }

// count is how many fields of a set the layout has.
func (l Layout) count(fields Layout) int { return bits.OnesCount16(uint16(l & fields)) }

// kind is the attention kind of the simulated blocks.
const kind = "full_attention"

// mediums are the names of the tiers.
var mediums = [...]string{kvblock.TierGPU: "GPU", kvblock.TierCPU: "CPU", kvblock.TierDisk: "STORAGE"}

// Encode appends the batch of one step.
func Encode(dst []byte, l Layout, at time.Time, rank int, events []core.Event) []byte {
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, float64(at.UnixNano())/1e9)
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for _, ev := range events {
		dst = l.event(dst, ev)
	}
	return msgp.AppendInt(dst, rank)
}

func (l Layout) event(dst []byte, ev core.Event) []byte {
	w := writer{dst: dst, layout: l}
	switch ev.Kind {
	case core.Stored:
		w.stored(ev)
	case core.Removed:
		w.removed(ev)
	case core.Cleared:
		w.open("AllBlocksCleared", 0)
	}
	return w.dst
}

type writer struct {
	dst    []byte
	layout Layout
}

// open starts an event with n fields after its tag.
func (w *writer) open(tag string, n int) {
	if w.layout.has(Maps) {
		w.dst = msgp.AppendMapHeader(w.dst, uint32(n+1))
		w.dst = msgp.AppendString(w.dst, "type")
	} else {
		w.dst = msgp.AppendArrayHeader(w.dst, uint32(n+1))
	}
	w.dst = msgp.AppendString(w.dst, tag)
}

// name writes a field's name where the layout has names.
func (w *writer) name(s string) {
	if w.layout.has(Maps) {
		w.dst = msgp.AppendString(w.dst, s)
	}
}

func (w *writer) stored(ev core.Event) {
	l := w.layout
	n := 5 + l.count(Medium|LoRAName|ExtraKeys|Group|SpecKind)
	if !l.has(Maps) {
		n += l.count(SpecKind) // arrays have a place for the sliding window too
	}
	n += w.located(ev)
	w.open("BlockStored", n)
	w.name("block_hashes")
	w.hashes(ev.Hashes)
	w.name("parent_block_hash")
	if ev.HasParent {
		w.hash(ev.Parent)
	} else {
		w.dst = msgp.AppendNil(w.dst)
	}
	w.name("token_ids")
	w.tokens(ev.Tokens)
	w.name("block_size")
	w.dst = msgp.AppendInt(w.dst, ev.BlockSize)
	w.name("lora_id")
	w.optional(ev.Space.Adapter != "", func(b []byte) []byte { return msgp.AppendInt(b, ev.Space.AdapterID) })
	if l.has(Medium) {
		w.name("medium")
		w.dst = msgp.AppendString(w.dst, mediums[ev.Tier])
	}
	if l.has(LoRAName) {
		w.name("lora_name")
		w.optional(ev.Space.Adapter != "", func(b []byte) []byte { return msgp.AppendString(b, ev.Space.Adapter) })
	}
	if l.has(ExtraKeys) {
		w.name("extra_keys")
		w.extras(ev)
	}
	w.group()
	w.locality(ev)
	if l.has(SpecKind) {
		w.name("kv_cache_spec_kind")
		w.dst = msgp.AppendString(w.dst, kind)
		if !l.has(Maps) {
			w.dst = msgp.AppendNil(w.dst)
		}
	}
}

func (w *writer) removed(ev core.Event) {
	w.open("BlockRemoved", 1+w.layout.count(Medium|Group)+w.located(ev))
	w.name("block_hashes")
	w.hashes(ev.Hashes)
	if w.layout.has(Medium) {
		w.name("medium")
		w.dst = msgp.AppendString(w.dst, mediums[ev.Tier])
	}
	w.group()
	w.locality(ev)
}

// located is the number of fields that say whether the tier is the engine's own: they are left out where it does not say.
func (w *writer) located(ev core.Event) int {
	if ev.Tier == kvblock.TierDisk && w.layout.has(Maps) {
		return w.layout.count(Locality)
	}
	return 0
}

// locality writes that the store is not the engine's own.
func (w *writer) locality(ev core.Event) {
	if w.located(ev) > 0 {
		w.name("locality")
		w.dst = msgp.AppendString(w.dst, "REMOTE")
	}
}

func (w *writer) group() {
	if w.layout.has(Group) {
		w.name("group_idx")
		w.dst = msgp.AppendInt(w.dst, 0)
	}
}

func (w *writer) optional(has bool, write func([]byte) []byte) {
	if has {
		w.dst = write(w.dst)
	} else {
		w.dst = msgp.AppendNil(w.dst)
	}
}

func (w *writer) hashes(list []core.Digest) {
	w.dst = msgp.AppendArrayHeader(w.dst, uint32(len(list)))
	for _, d := range list {
		w.hash(d)
	}
}

func (w *writer) hash(d core.Digest) {
	switch {
	case w.layout.has(Bytes):
		b := d.Bytes()
		w.dst = msgp.AppendBytes(w.dst, b[:])
	case w.layout.has(SignedHashes):
		w.dst = msgp.AppendInt64(w.dst, int64(d.Lo))
	default:
		w.dst = msgp.AppendUint64(w.dst, d.Lo)
	}
}

func (w *writer) tokens(ids []uint32) {
	shift := uint32(0)
	if w.layout.has(Lie) {
		shift = 1
	}
	w.dst = msgp.AppendArrayHeader(w.dst, uint32(len(ids)))
	for _, id := range ids {
		w.dst = msgp.AppendUint32(w.dst, id+shift)
	}
}

// extras writes one entry per block: nil, or its extra keys in vLLM's order.
func (w *writer) extras(ev core.Event) {
	w.dst = msgp.AppendArrayHeader(w.dst, uint32(len(ev.Hashes)))
	for i := range ev.Hashes {
		start := ev.First + i*ev.BlockSize
		var keys []any
		if ev.Space.Adapter != "" {
			keys = append(keys, ev.Space.Adapter)
		}
		for _, it := range ev.Space.Overlapping(start, start+ev.BlockSize) {
			if w.layout.has(ItemOffsets) {
				keys = append(keys, []any{it.ID, it.Offset - start})
			} else {
				keys = append(keys, it.ID)
			}
		}
		if ev.Space.Salt != "" && start == 0 {
			keys = append(keys, ev.Space.Salt)
		}
		if keys == nil {
			w.dst = msgp.AppendNil(w.dst)
			continue
		}
		w.values(keys)
	}
}

func (w *writer) values(list []any) {
	w.dst = msgp.AppendArrayHeader(w.dst, uint32(len(list)))
	for _, v := range list {
		switch v := v.(type) {
		case string:
			w.dst = msgp.AppendString(w.dst, v)
		case int:
			w.dst = msgp.AppendInt(w.dst, v)
		case []any:
			w.values(v)
		}
	}
}
