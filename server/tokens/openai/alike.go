package openai

import (
	"hash/maphash"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Chunks reads the events of one stream as readChunk does, faster: the events of an answer's text differ in the text
// and its ids alone, so an event that is otherwise like the last one of that kind is compared with it instead of parsed.
// The comparison is one of hashes, with a seed of the stream's own: of thousands of streams the bytes of a last event are in no
// processor's cache. The zero value is ready. It belongs to one goroutine.
type Chunks struct {
	seed maphash.Seed
	// before, between and after are the parts around the text and the ids in the last event that has both; before is empty until there is one.
	before, between, after sum
	// head is the length of Head, index the choice's.
	head, index int
	nulls       Nulls
}

// sum stands for some bytes.
type sum struct {
	size int
	hash uint64
}

func (s *Chunks) sum(b []byte) sum { return sum{len(b), maphash.Bytes(s.seed, b)} }

// has reports whether b has the sum it.
func (s *Chunks) has(b []byte, it sum) bool {
	return len(b) == it.size && maphash.Bytes(s.seed, b) == it.hash
}

// Piece is the difference of an event that is otherwise like the one before. Its slices share memory with the event.
type Piece struct {
	// Text is a raw JSON string, IDs a raw list of token ids, which begins at From in the event.
	Text, IDs []byte
	From      int
}

// Read reads the JSON of one event into c, with the result that readChunk has.
func (s *Chunks) Read(data []byte, c *Chunk) bool {
	if p, ok := s.Alike(data); ok {
		text, ids := place{s.before.size, s.before.size + len(p.Text)}, place{p.From, p.From + len(p.IDs)}
		*c = Chunk{Choices: 1, Index: s.index, Plain: true, Head: data[:s.head], Text: p.Text, IDs: p.IDs, Nulls: s.nulls, data: data, text: text, ids: ids}
		return true
	}
	if !readChunk(data, c) {
		return false
	}
	if c.Choices == 1 && c.Plain && len(c.Text) > 0 && c.Text[0] == '"' && c.text.to <= c.ids.from && c.prompt.to == 0 &&
		c.Finish == nil && c.Stop == nil && c.Logprobs == nil && c.Usage == nil && c.Fingerprint == nil && c.Fault == 0 && !c.Empty {
		s.remember(c)
	}
	return true
}

// remember takes c as the pattern of further events.
func (s *Chunks) remember(c *Chunk) {
	if s.before.size == 0 {
		s.seed = maphash.MakeSeed()
	}
	s.before, s.between, s.after = s.sum(c.data[:c.text.from]), s.sum(c.data[c.text.to:c.ids.from]), s.sum(c.data[c.ids.to:])
	s.head, s.index, s.nulls = len(c.Head), c.Index, c.Nulls
}

// Alike reads an event that differs from the last one of its kind in its text and ids alone; false for any other.
func (s *Chunks) Alike(data []byte) (Piece, bool) {
	text := s.before.size
	if text == 0 || text >= len(data) || data[text] != '"' {
		return Piece{}, false
	}
	r := rawjson.Scanner{Data: data, Pos: text}
	if !r.Skip() {
		return Piece{}, false
	}
	end := r.Pos
	from := end + s.between.size
	if r.Pos = from; from > len(data) || !r.SkipIDs() {
		return Piece{}, false
	}
	if !s.has(data[:text], s.before) || !s.has(data[end:from], s.between) || !s.has(data[r.Pos:], s.after) {
		return Piece{}, false
	}
	return Piece{Text: data[text:end], IDs: data[from:r.Pos], From: from}, true
}
