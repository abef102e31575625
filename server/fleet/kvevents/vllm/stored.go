package vllm

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// stored gathers the fields of one event, of whatever tag.
type stored struct {
	value     kvblock.Stored
	extra     []byte // extra_keys, unread until the rest of the event is known
	ambiguous bool   // a token that is no token id
	named     bool   // the map encoding
	fields    int    // positions after the tag in the array encoding
	hashes    int    // where this event's hashes start
	tokens    int    // where this event's tokens start
	removed   bool   // it was a removal, and is in the batch
	plain     int    // how much of the payload was left at its hash, if it has one only and it has full width; else 0
}

func (d *Decoder) begin() {
	d.event = stored{value: kvblock.Stored{Group: kvblock.NoGroup}, hashes: len(d.hashes), tokens: len(d.tokens)}
}

// field reads one field's value, or skips it.
func (d *Decoder) field(f field, b []byte) (rest []byte, err error) {
	e := &d.event.value
	var name []byte
	switch f {
	case fieldHashes:
		return d.readHashes(b)
	case fieldParent:
		e.Parent, e.HasParent, b, err = hash(b)
		e.HasParent = e.HasParent && e.Parent != 0 // some simulators write a root's missing parent as 0
	case fieldTokens:
		return d.readTokens(b)
	case fieldBlockSize:
		e.BlockSize, b, err = small(b, "block_size", 0)
	case fieldLoraID:
		e.AdapterID, _, b, err = number(b, "lora_id")
	case fieldMedium:
		name, b, err = text(b, "medium")
		e.Tier = tierOf(name)
	case fieldLoraName:
		name, b, err = text(b, "lora_name")
		e.Adapter = d.intern(name)
	case fieldExtraKeys:
		rest, err = skip(b, "extra_keys")
		d.event.extra = b[:len(b)-len(rest)]
		return rest, err
	case fieldGroup:
		e.Group, b, err = small(b, "group_idx", kvblock.NoGroup)
	case fieldKind:
		name, b, err = text(b, "kv_cache_spec_kind")
		e.Kind = kindOf(name)
	case fieldWindow:
		e.Window, b, err = small(b, "kv_cache_spec_sliding_window", 0)
	case fieldLocality:
		name, b, err = text(b, "locality")
		e.Remote = string(name) == "REMOTE" || string(name) == "remote"
	case fieldLookahead:
		e.Lookahead, b, err = lookahead(b)
	case fieldType, fieldAside:
		return skip(b, "event")
	default:
		d.batch.UnknownFields++
		return skip(b, "event")
	}
	return b, err
}

// lookahead reads the tokens behind each block that its hash covers too, and returns how many they
// are: the longest list, because the last blocks of a prompt may have fewer.
func lookahead(b []byte) (longest int, rest []byte, err error) {
	n, b, err := list(b, "lookahead_token_ids")
	if err != nil {
		return 0, b, err
	}
	for range n {
		size, _, err := list(b, "lookahead_token_ids")
		if err != nil {
			return 0, b, err
		}
		if b, err = skip(b, "lookahead_token_ids"); err != nil {
			return 0, b, err
		}
		longest = max(longest, size)
	}
	return longest, b, nil
}

// finish turns the gathered fields into an event of the batch.
func (d *Decoder) finish(op Op, known bool) error {
	if !known {
		d.batch.UnknownTags++
		return nil
	}
	switch op {
	case OpStored:
		return d.finishStored()
	case OpRemoved:
		d.finishRemoved()
	case OpCleared:
		d.batch.Events = append(d.batch.Events, Event{Op: OpCleared, Tier: d.event.value.Tier})
	}
	return nil
}

func (d *Decoder) finishStored() error {
	e := &d.event.value
	e.Hashes = d.hashes[d.event.hashes:len(d.hashes):len(d.hashes)]
	e.Tokens = d.tokens[d.event.tokens:len(d.tokens):len(d.tokens)]
	e.Ambiguous = d.event.ambiguous
	if len(e.Hashes) == 0 {
		return nil // no block was stored
	}
	if e.BlockSize < 0 {
		return refuse("block_size %d", e.BlockSize)
	}
	if len(e.Tokens) > 0 && len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		d.hashes, d.tokens = d.hashes[:d.event.hashes], d.tokens[:d.event.tokens] // removals that are joined lie side by side
		d.batch.Misfits++
		if formsPrefix(e.Kind, e.Group) {
			d.batch.PrefixMisfits++
		}
		return nil
	}
	if len(d.event.extra) > 0 && len(e.Tokens) > 0 {
		if err := d.readExtraKeys(d.event.extra); err != nil {
			return err
		}
	}
	d.batch.Events = append(d.batch.Events, Event{Op: OpStored, Stored: *e})
	return nil
}

// finishRemoved adds a removal, or lengthens the one before it: vLLM sends one event per block.
func (d *Decoder) finishRemoved() {
	e := &d.event.value
	if len(d.hashes) == d.event.hashes {
		return
	}
	d.event.removed = true
	if n := len(d.batch.Events); n > 0 && d.batch.Events[n-1].Op == OpRemoved {
		last := &d.batch.Events[n-1].Removed
		if last.Tier == e.Tier && last.Remote == e.Remote && last.Group == e.Group {
			last.Hashes = d.hashes[d.event.hashes-len(last.Hashes) : len(d.hashes) : len(d.hashes)]
			return
		}
	}
	d.batch.Events = append(d.batch.Events, Event{Op: OpRemoved, Removed: kvblock.Removed{
		Hashes: d.hashes[d.event.hashes:len(d.hashes):len(d.hashes)], Tier: e.Tier, Remote: e.Remote, Group: e.Group,
	}})
}

func (d *Decoder) readHashes(b []byte) ([]byte, error) {
	n, b, err := list(b, "block_hashes")
	if err != nil {
		return b, err
	}
	if n > maxHashes-len(d.hashes) {
		return b, refuse("more than %d hashes", maxHashes)
	}
	d.hashes = d.hashes[:d.event.hashes] // a repeated field counts once
	d.event.plain = 0
	if n == 1 && b[0] == wideUint {
		d.event.plain = len(b)
	}
	for range n {
		h, present, rest, err := hash(b)
		if err != nil {
			return b, err
		}
		if !present {
			return b, refuse("block hash is nil")
		}
		d.hashes = append(d.hashes, h)
		b = rest
	}
	return b, nil
}

// readTokens is the hottest loop of the package: most of a payload is token ids.
func (d *Decoder) readTokens(b []byte) ([]byte, error) {
	n, b, err := list(b, "token_ids")
	if err != nil {
		return b, err
	}
	if n > maxTokens-len(d.tokens) {
		return b, refuse("more than %d tokens", maxTokens)
	}
	tokens := slices.Grow(d.tokens[:d.event.tokens], n)
	for range n {
		var id uint32
		switch {
		case len(b) >= 3 && b[0] == 0xcd:
			id, b = uint32(b[1])<<8|uint32(b[2]), b[3:]
		case len(b) >= 5 && b[0] == 0xce:
			id, b = binary.BigEndian.Uint32(b[1:]), b[5:]
		case len(b) >= 1 && b[0] < 0x80:
			id, b = uint32(b[0]), b[1:]
		case len(b) >= 2 && b[0] == 0xcc:
			id, b = uint32(b[1]), b[2:]
		default:
			wide, present, rest, err := number(b, "token_ids")
			if err != nil {
				return b, err
			}
			if !present || wide < 0 || wide > math.MaxUint32 {
				d.event.ambiguous = true // no prompt can name such a token
			}
			id, b = uint32(wide), rest
		}
		tokens = append(tokens, id)
	}
	d.tokens = tokens
	return b, nil
}
