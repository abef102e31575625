package vllm

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// Buffers that one unusual payload has made larger than this are released.
const (
	keepHashes  = 1 << 17
	keepTokens  = 1 << 20
	keepEvents  = 1 << 13
	keepItems   = 1 << 13
	keepStrings = 1 << 12
)

// Decoder decodes payloads, one after the other. The zero value is ready.
type Decoder struct {
	batch   Batch
	hashes  []kvblock.EngineHash
	tokens  []uint32
	items   []kvblock.Item
	perRow  [][]kvblock.Item
	strings map[string]string
	event   stored // of the BlockStored that is being read
	last    pattern
}

// Decode reads one payload. The Batch is valid until the next call; after an error nothing of
// the payload may be used.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.reset()
	var err error
	switch msgp.NextType(payload) {
	case msgp.ArrayType:
		err = d.batchArray(payload)
	case msgp.MapType:
		err = d.batchMap(payload)
	default:
		err = refuse("payload starts with %s", msgp.NextType(payload))
	}
	if err != nil {
		return nil, err
	}
	return &d.batch, nil
}

func (d *Decoder) reset() {
	d.hashes = keep(d.hashes, keepHashes)
	d.tokens = keep(d.tokens, keepTokens)
	d.items = keep(d.items, keepItems)
	d.perRow = keep(d.perRow, keepItems)
	events := keep(d.batch.Events, keepEvents)
	if d.strings == nil || len(d.strings) > keepStrings {
		d.strings = map[string]string{}
	}
	d.batch = Batch{Rank: -1, Events: events}
	d.last = pattern{}
}

// keep empties s for reuse, or drops it when it has grown beyond limit elements.
func keep[T any](s []T, limit int) []T {
	if cap(s) > limit {
		return nil
	}
	return s[:0]
}

// intern returns b as a string that lives beyond the payload; repeated names cost nothing.
func (d *Decoder) intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := d.strings[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(b) <= 512 { // long ones are rarely repeated names
		d.strings[s] = s
	}
	return s
}

// batchArray reads [ts, events, rank, ...].
func (d *Decoder) batchArray(b []byte) error {
	n, b, err := list(b, "batch")
	if err != nil {
		return err
	}
	if n < 2 {
		return refuse("batch of %d elements", n)
	}
	if d.batch.Time, b, err = seconds(b); err != nil {
		return wrap("ts", err)
	}
	if b, err = d.events(b); err != nil {
		return err
	}
	if n > 2 {
		if d.batch.Rank, b, err = small(b, "data_parallel_rank", -1); err != nil {
			return err
		}
	}
	for i := 3; i < n; i++ {
		d.batch.UnknownFields++
		if b, err = skip(b, "batch"); err != nil {
			return err
		}
	}
	return ended(b)
}

// batchMap reads a batch in the shape of a map, which no released vLLM sends.
func (d *Decoder) batchMap(b []byte) error {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return wrap("batch", err)
	}
	seen := false
	for range n {
		var key []byte
		if key, b, err = text(b, "batch key"); err != nil {
			return err
		}
		switch string(key) {
		case "ts":
			d.batch.Time, b, err = seconds(b)
		case "events":
			if seen {
				return refuse("events twice")
			}
			seen = true
			b, err = d.events(b)
		case "data_parallel_rank":
			d.batch.Rank, b, err = small(b, "data_parallel_rank", -1)
		case "type":
			b, err = skip(b, "batch type")
		default:
			d.batch.UnknownFields++
			b, err = skip(b, "batch")
		}
		if err != nil {
			return wrap("batch", err)
		}
	}
	if !seen {
		return refuse("batch without events")
	}
	return ended(b)
}

func ended(b []byte) error {
	if len(b) > 0 {
		return refuse("%d bytes after the batch", len(b))
	}
	return nil
}

func (d *Decoder) events(b []byte) ([]byte, error) {
	n, b, err := list(b, "events")
	if err != nil {
		return b, err
	}
	d.batch.Wire = n
	for range n {
		if size := d.repeated(b); size > 0 {
			b = b[size:]
			continue
		}
		if len(d.batch.Events) >= maxEvents {
			return b, refuse("more than %d events", maxEvents)
		}
		d.last = pattern{}
		start, unknown := b, d.batch.UnknownFields
		switch msgp.NextType(b) {
		case msgp.ArrayType:
			b, err = d.eventArray(b)
		case msgp.MapType:
			b, err = d.eventMap(b)
		default:
			return b, refuse("event of type %s", msgp.NextType(b))
		}
		if err != nil {
			return b, err
		}
		if d.batch.UnknownFields == unknown {
			d.learn(start, b)
		}
	}
	return b, nil
}

// eventArray reads [tag, fields by position].
func (d *Decoder) eventArray(b []byte) ([]byte, error) {
	n, b, err := list(b, "event")
	if err != nil {
		return b, err
	}
	if n == 0 {
		return b, refuse("event without a tag")
	}
	tag, b, err := text(b, "event tag")
	if err != nil {
		return b, err
	}
	op, known := operation(tag)
	d.begin()
	for i := 1; i < n; i++ {
		f := fieldAside // of an event that counts as unknown as a whole
		if known {
			f = fieldAt(op, i)
		}
		if b, err = d.field(f, b); err != nil {
			return b, err
		}
	}
	d.event.fields = n - 1
	return b, d.finish(op, known)
}

// eventMap reads {"type": tag, fields by name}. The tag comes first from every encoder known,
// but a map promises no order.
func (d *Decoder) eventMap(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, wrap("event", err)
	}
	tag, err := findTag(b, n)
	if err != nil {
		return b, err
	}
	op, known := operation(tag)
	d.begin()
	d.event.named = true
	for range n {
		var key []byte
		if key, b, err = text(b, "event key"); err != nil {
			return b, err
		}
		f := fieldAside // of an event that counts as unknown as a whole
		if known {
			f = fieldNamed(key)
		}
		if b, err = d.field(f, b); err != nil {
			return b, err
		}
	}
	return b, d.finish(op, known)
}

// findTag returns the value of "type" among the n pairs that start at b.
func findTag(b []byte, n uint32) ([]byte, error) {
	for range n {
		key, rest, err := text(b, "event key")
		if err != nil {
			return nil, err
		}
		if string(key) == "type" {
			tag, _, err := text(rest, "event tag")
			return tag, err
		}
		if b, err = skip(rest, "event"); err != nil {
			return nil, err
		}
	}
	return nil, refuse("event without a tag")
}

func operation(tag []byte) (Op, bool) {
	switch string(tag) {
	case "BlockStored":
		return OpStored, true
	case "BlockRemoved":
		return OpRemoved, true
	case "AllBlocksCleared":
		return OpCleared, true
	}
	return 0, false
}
