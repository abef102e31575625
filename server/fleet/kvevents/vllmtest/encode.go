package vllmtest

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// Layout is one wire form of events: the form that a range of vLLM versions sends.
type Layout struct {
	// Name is the first version that sends it.
	Name string
	// Map is set for maps with named fields, unset for arrays.
	Map bool
	// Stored and Removed are the fields after the tag, in order.
	Stored, Removed []string
}

// required are the fields that maps hold even when they are nil.
var required = map[string]bool{
	"block_hashes": true, "parent_block_hash": true, "token_ids": true, "block_size": true,
	"lora_id": true, "medium": true, "lora_name": true,
}

// Layouts returns every layout, oldest first.
func Layouts() []Layout {
	all := []string{
		"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality",
		"ownership", "session_id", "lookahead_token_ids",
	}
	removed := []string{"block_hashes", "medium", "group_idx", "locality", "ownership"}
	return []Layout{
		{"0.9", false, all[:5], removed[:1]},
		{"0.11", false, all[:6], removed[:2]},
		{"0.14", false, all[:7], removed[:2]},
		{"0.18", false, all[:8], removed[:2]},
		{"0.21", false, all[:9], removed[:3]},
		{"0.23", false, all[:11], removed[:3]},
		{"0.24", true, all[:11], removed[:3]},
		{"0.27", true, all[:12], removed[:4]},
		{"0.32", true, all[:14], removed},
		{"0.33", true, all, removed},
	}
}

// Newest is the layout of current versions.
func Newest() Layout {
	all := Layouts()
	return all[len(all)-1]
}

// Event is one event: its "type" and fields. A field that the layout does not have is left out,
// one that is missing is nil.
type Event map[string]any

// Stored is a BlockStored of full blocks with integer hashes on the GPU.
func Stored(hashes []uint64, parent any, tokens []uint32, blockSize int) Event {
	return Event{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
		"block_size": blockSize, "medium": "GPU",
	}
}

// Removed is a BlockRemoved from the GPU.
func Removed(hashes ...uint64) Event {
	return Event{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
}

// Cleared is an AllBlocksCleared.
func Cleared() Event { return Event{"type": "AllBlocksCleared"} }

// With returns a copy of e with one more field.
func (e Event) With(name string, value any) Event {
	c := Event{}
	for k, v := range e {
		c[k] = v
	}
	c[name] = value
	return c
}

// Batch encodes a batch. A nil rank is written as nil.
func (l Layout) Batch(ts float64, rank any, events ...Event) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, ts)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = l.append(b, e)
	}
	return Append(b, rank)
}

func (l Layout) append(b []byte, e Event) []byte {
	var order []string
	switch e["type"] {
	case "BlockStored":
		order = l.Stored
	case "BlockRemoved":
		order = l.Removed
	}
	if !l.Map {
		b = msgp.AppendArrayHeader(b, uint32(1+len(order)))
		b = Append(b, e["type"])
		for _, name := range order {
			b = Append(b, e[name])
		}
		return b
	}
	var names []string
	for _, name := range order {
		if e[name] != nil || required[name] {
			names = append(names, name)
		}
	}
	b = msgp.AppendMapHeader(b, uint32(1+len(names)))
	b = Append(Append(b, "type"), e["type"])
	for _, name := range names {
		b = Append(Append(b, name), e[name])
	}
	return b
}

// Append encodes one value as msgspec does: integers in the shortest form, []byte as bin.
func Append(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return msgp.AppendNil(b)
	case []uint64:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, x := range v {
			b = msgp.AppendUint64(b, x)
		}
		return b
	case []uint32:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, x := range v {
			b = msgp.AppendUint64(b, uint64(x))
		}
		return b
	case []any:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, x := range v {
			b = Append(b, x)
		}
		return b
	}
	b, err := msgp.AppendIntf(b, value)
	if err != nil {
		panic(fmt.Sprintf("vllmtest: %T has no wire form: %v", value, err))
	}
	return b
}
