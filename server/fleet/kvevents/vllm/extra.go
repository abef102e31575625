package vllm

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// readExtraKeys reads the parts of each block's hash in addition to its tokens: the adapter's name,
// multimodal items, the cache salt in a prompt's first block, a digest of prompt embeddings,
// in this order. Nothing on the wire distinguishes them:
//
//   - the adapter's name is the first string and equals lora_name;
//   - from 0.19 on an item is a pair [identifier, offset], in 0.18 a string;
//   - the salt is the last string of the first block of a root;
//   - embeddings are bytes.
//
// A string that could be an item of 0.18 or a salt is taken for an item when it looks like
// vLLM's content hash (64 hexadecimal digits), else for the salt. A wrong guess costs hits and never
// gives a false one, because both keep the block apart from the plain one.
func (d *Decoder) readExtraKeys(b []byte) error {
	e := &d.event.value
	n, b, err := list(b, "extra_keys")
	if err != nil || n == 0 {
		return err
	}
	if n != len(e.Hashes) {
		e.Ambiguous = true
		return nil
	}
	rows := len(d.perRow)
	if rows+n > maxItems {
		return refuse("more than %d rows of extra keys", maxItems)
	}
	any := false
	for i := range n {
		start := len(d.items)
		if b, err = d.readExtraRow(b, i); err != nil {
			return err
		}
		row := d.items[start:len(d.items):len(d.items)]
		if len(row) == 0 {
			row = nil
		}
		any = any || row != nil
		d.perRow = append(d.perRow, row)
	}
	if any {
		e.Items = d.perRow[rows:len(d.perRow):len(d.perRow)]
	}
	return nil
}

// readExtraRow reads the extra keys of block i and appends its items.
func (d *Decoder) readExtraRow(b []byte, i int) ([]byte, error) {
	if !isNil(b) && msgp.NextType(b) != msgp.ArrayType {
		d.event.value.Ambiguous = true
		return skip(b, "extra_keys")
	}
	n, b, err := list(b, "extra_keys")
	if err != nil {
		return b, err
	}
	for j := 0; j < n && err == nil; j++ {
		switch msgp.NextType(b) {
		case msgp.StrType:
			b, j, err = d.readString(b, i, j, n)
		case msgp.ArrayType:
			b, err = d.readPair(b)
		case msgp.NilType:
			b = b[1:]
		default: // bytes: prompt embeddings; anything else: unknown
			d.event.value.Ambiguous = true
			b, err = skip(b, "extra_keys")
		}
	}
	if len(d.items) > maxItems {
		return b, refuse("more than %d items", maxItems)
	}
	return b, err
}

// readString reads the string at position j of n in block i's extra keys, and the offset that may
// follow it; it returns the last position read.
func (d *Decoder) readString(b []byte, i, j, n int) ([]byte, int, error) {
	s, b, err := text(b, "extra_keys")
	if err != nil {
		return b, j, err
	}
	e := &d.event.value
	switch {
	case j+1 < n && isInteger(b): // a pair that was not nested
		offset, b, err := small(b, "extra_keys", 0)
		d.items = append(d.items, kvblock.Item{ID: d.intern(s), Offset: offset, HasOffset: true})
		return b, j + 1, err
	case j == 0 && e.Adapter != "" && string(s) == e.Adapter:
	case i == 0 && !e.HasParent && j == n-1 && (!d.itemsMayBeStrings() || !isDigest(s)):
		e.Salt = d.intern(s)
	default:
		if !d.itemsMayBeStrings() {
			e.Ambiguous = true // no version puts a string here
		}
		d.items = append(d.items, kvblock.Item{ID: d.intern(s)})
	}
	return b, j, nil
}

// readPair reads [identifier, offset].
func (d *Decoder) readPair(b []byte) ([]byte, error) {
	n, rest, err := list(b, "extra_keys")
	if err != nil {
		return b, err
	}
	if n != 2 || msgp.NextType(rest) != msgp.StrType {
		d.event.value.Ambiguous = true
		return skip(b, "extra_keys")
	}
	id, rest, err := text(rest, "extra_keys")
	if err != nil {
		return b, err
	}
	if !isInteger(rest) {
		d.event.value.Ambiguous = true
		return skip(b, "extra_keys")
	}
	offset, rest, err := small(rest, "extra_keys", 0)
	if err != nil {
		return b, err
	}
	d.items = append(d.items, kvblock.Item{ID: d.intern(id), Offset: offset, HasOffset: true})
	return rest, nil
}

// itemsMayBeStrings distinguishes the layout of 0.18 and 0.19, which has extra_keys and no group, from
// later ones, where items are always pairs.
func (d *Decoder) itemsMayBeStrings() bool {
	return !d.event.named && d.event.fields <= 8
}

func isInteger(b []byte) bool {
	t := msgp.NextType(b)
	return t == msgp.IntType || t == msgp.UintType
}

func isDigest(s []byte) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range s {
		digit := '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if !digit {
			return false
		}
	}
	return true
}
