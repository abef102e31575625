package openai

import (
	"bytes"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Chunks reads the events of one stream as readChunk does, faster: the events of an answer's text differ in the text
// and its ids alone, so an event that is otherwise like the last one of that kind is compared with it instead of parsed.
// The zero value is ready. It belongs to one goroutine.
type Chunks struct {
	// of the last event with a text and ids: its bytes before, between and after the two
	before, between, after []byte
	// what it was read to, without Head, Text and IDs
	like Chunk
	head int // the length of Head
}

// Read reads the JSON of one event into c, with the result that readChunk has.
func (s *Chunks) Read(data []byte, c *Chunk) bool {
	if s.readAlike(data, c) {
		return true
	}
	if !readChunk(data, c) {
		return false
	}
	if c.Choices == 1 && c.Plain && len(c.Text) > 0 && c.Text[0] == '"' && c.text.to <= c.ids.from && c.prompt.to == 0 &&
		c.Finish == nil && c.Stop == nil && c.Usage == nil && c.Fingerprint == nil && c.Fault == 0 {
		s.remember(c)
	}
	return true
}

// remember takes c as what further events may be like.
func (s *Chunks) remember(c *Chunk) {
	s.before = append(s.before[:0], c.data[:c.text.from]...)
	s.between = append(s.between[:0], c.data[c.text.to:c.ids.from]...)
	s.after = append(s.after[:0], c.data[c.ids.to:]...)
	s.head = len(c.Head)
	s.like = Chunk{Choices: c.Choices, Index: c.Index, Plain: true, Empty: c.Empty}
}

// readAlike reads an event that differs from the remembered one in its text and ids alone; false for any other.
func (s *Chunks) readAlike(data []byte, c *Chunk) bool {
	if len(s.before) == 0 || !bytes.HasPrefix(data, s.before) || !bytes.HasSuffix(data, s.after) {
		return false
	}
	r := rawjson.Scanner{Data: data, Pos: len(s.before)}
	if r.Pos >= len(data) || data[r.Pos] != '"' || !r.Skip() || !bytes.HasPrefix(data[r.Pos:], s.between) {
		return false
	}
	text := place{len(s.before), r.Pos}
	r.Pos += len(s.between)
	ids := place{r.Pos, 0}
	if !r.SkipIDs() || r.Pos+len(s.after) != len(data) {
		return false
	}
	ids.to = r.Pos
	*c = s.like
	c.data, c.text, c.ids = data, text, ids
	c.Head, c.Text, c.IDs = data[:s.head], data[text.from:text.to], data[ids.from:ids.to]
	return true
}
