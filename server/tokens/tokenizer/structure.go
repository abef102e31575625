package tokenizer

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// signature stands for the structure of a message: everything that chat templates are known to
// decide by (role, members, kind of content, marks of thoughts, space at its ends), and nothing
// of its text.
type signature uint64

// shape is a message's signature, role and length. The ends of a message that is new do not matter to the rendering before it,
// so added leaves them out.
type shape struct {
	sig   signature
	added signature
	role  string
	size  int
}

// sizes are the lengths of the longest messages of users, of assistants and of all others.
type sizes [3]int

func (z *sizes) add(s shape) {
	i := 2
	switch s.role {
	case "user":
		i = 0
	case "assistant":
		i = 1
	}
	z[i] = max(z[i], s.size)
}

// within reports whether nothing in z is longer than in the other.
func (z sizes) within(other sizes) bool {
	return z[0] <= other[0] && z[1] <= other[1] && z[2] <= other[2]
}

func sizesOf(shapes []shape) (z sizes) {
	for _, s := range shapes {
		z.add(s)
	}
	return z
}

// shapeOf reads a raw message. A message that cannot be read has a shape of its own.
func shapeOf(message []byte) shape {
	var names [8]string
	keys := names[:0]
	s := shape{size: len(message)}
	content := byte('-')
	var ends, flags byte
	err := rawjson.Members(message, func(key string, value []byte) bool {
		if rawjson.IsNull(value) || string(value) == "[]" {
			return true
		}
		keys = append(keys, key)
		switch key {
		case "role":
			s.role, _ = rawjson.Unquote(value) // a role that is no string stays empty
		case "content":
			content = value[0]
			ends = spaceAtEnds(value)
		}
		return true
	})
	if err != nil {
		return shape{sig: 1, added: 1, size: len(message)}
	}
	if bytes.Contains(message, []byte("think")) {
		flags = 1
	}
	slices.Sort(keys)
	var buf [256]byte
	b := append(buf[:0], content, flags)
	for _, part := range append(keys, s.role) {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	s.added = signature(xxh3.Hash(b))
	s.sig = signature(xxh3.HashSeed(b, uint64(ends)))
	return s
}

// spaceAtEnds reports whether a raw string begins (1) or ends (2) with white space, or is empty (3).
func spaceAtEnds(value []byte) byte {
	if value[0] != '"' {
		return 0
	}
	inner := value[1 : len(value)-1]
	if len(inner) == 0 {
		return 3
	}
	var flags byte
	if inner[0] == ' ' || inner[0] == '\\' && len(inner) > 1 && isSpaceEscape(inner[1]) {
		flags |= 1
	}
	if n := len(inner); inner[n-1] == ' ' || n > 1 && inner[n-2] == '\\' && isSpaceEscape(inner[n-1]) {
		flags |= 2
	}
	return flags
}

// isSpaceEscape reads the letter of an escape; \u may be any space, so it counts as one.
func isSpaceEscape(c byte) bool { return c == 'n' || c == 't' || c == 'r' || c == 'f' || c == 'u' }

// step is one extension of a conversation: an answer and the messages behind it.
type step struct {
	// class names the structure that decides how the step changes the earlier rendering.
	class uint64
	// tail has the lengths of the messages since the last user message before the step.
	tail sizes
	// from is the index of the first message that it adds.
	from int
}

// stepsOf cuts the messages from index k on into steps and names their classes.
func stepsOf(pr *prompt.Prompt, k int) []step {
	head := fieldsShape(pr)
	tail := tailShapes(pr.Messages[:k])
	var list []step
	for i := k; i < len(pr.Messages); {
		var added []shape
		j := i
		for ; j < len(pr.Messages); j++ {
			s := shapeOf(pr.Messages[j])
			if n := len(added); n > 0 && s.role == "assistant" && added[n-1].role != "assistant" {
				break
			}
			added = append(added, s)
		}
		list = append(list, step{class: className(head, tail, added), tail: sizesOf(tail), from: i})
		tail = append(tail, added...)
		if u := lastUser(tail); u > 0 {
			tail = tail[u:]
		}
		i = j
	}
	return list
}

// tailShapes gives the shapes from the last user message on, or of all messages without one.
func tailShapes(messages [][]byte) []shape {
	var tail []shape
	for i := len(messages) - 1; i >= 0; i-- {
		s := shapeOf(messages[i])
		tail = append(tail, s)
		if s.role == "user" {
			break
		}
	}
	slices.Reverse(tail)
	return tail
}

func lastUser(shapes []shape) int {
	for i := len(shapes) - 1; i >= 0; i-- {
		if shapes[i].role == "user" {
			return i
		}
	}
	return -1
}

// className hashes the inputs of a step's effect: the request's fields, the set of shapes
// since the last user message and the last of them, and the sequence that was added, runs of
// equal shapes counted once.
func className(head uint64, tail, added []shape) uint64 {
	var buf [512]byte
	b := binary.LittleEndian.AppendUint64(buf[:0], head)
	set := make([]signature, 0, 16)
	for _, s := range tail {
		if !slices.Contains(set, s.sig) {
			set = append(set, s.sig)
		}
	}
	slices.Sort(set)
	for _, sig := range set {
		b = binary.LittleEndian.AppendUint64(b, uint64(sig))
	}
	b = append(b, '|')
	if n := len(tail); n > 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(tail[n-1].sig))
	}
	b = append(b, '|')
	for i, s := range added {
		if i > 0 && s.added == added[i-1].added {
			continue
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(s.added))
	}
	return xxh3.Hash(b)
}

// fieldsShape hashes the fields by value, but tools and documents by their presence.
func fieldsShape(pr *prompt.Prompt) uint64 {
	var buf [512]byte
	b := append(buf[:0], pr.Model...)
	for _, f := range pr.Fields {
		b = binary.AppendUvarint(b, uint64(len(f.Name)))
		b = append(b, f.Name...)
		if bulky(f.Name) && !rawjson.IsNull(f.Value) {
			b = append(b, f.Value[0])
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(f.Value)))
		b = append(b, f.Value...)
	}
	return xxh3.Hash(b)
}

// bulky names the fields that hold text of their own.
func bulky(name string) bool { return name == "tools" || name == "documents" || name == "functions" }
