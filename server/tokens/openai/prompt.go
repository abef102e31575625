package openai

import (
	"bytes"
	"math"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
)

// found is what a prompt, messages or input member held. Its zero value is a value without a
// prompt in it: absent, null, empty or of a wrong type.
type found struct {
	kind  prompt.Kind
	texts []text
	ids   []uint32
	batch [][]uint32
	items [][]byte
	media bool
}

// truthy reports whether there is anything to route by.
func (f *found) truthy() bool { return f.kind != prompt.KindNone }

// list reads a list of messages (objects).
func (r *reader) list(f *found) bool {
	*f = found{}
	if r.s.space() != '[' {
		return r.s.skip()
	}
	onlyObjects := true
	ok := r.s.elements(func(int) bool {
		if !r.moreItems(len(f.items), "messages") {
			return false
		}
		start := r.s.pos
		if r.s.space() != '{' {
			onlyObjects = onlyObjects && r.s.atEnd() // an end in front of the next message spoils nothing
			return r.s.skip()
		}
		media, ok := r.message()
		if !ok {
			if r.truncated && r.s.eof {
				if cut := cutMessage(r.s.data[start:]); cut != nil {
					f.media, f.items = f.media || media, append(f.items, cut)
				}
			}
			return false
		}
		f.media = f.media || media
		if f.items == nil {
			f.items = make([][]byte, 0, 8)
		}
		f.items = append(f.items, r.s.data[start:r.s.pos:r.s.pos])
		return true
	})
	if onlyObjects && len(f.items) > 0 {
		f.kind = prompt.KindChat
	} else {
		*f = found{}
	}
	return ok
}

// promptOrList reads the input of the Responses API, which is a string or a list of items,
// and of the pooling routes, whose inputs are shaped like prompts.
func (r *reader) promptOrList(f *found) bool {
	if r.s.space() == '[' && r.firstElement() == '{' {
		return r.list(f)
	}
	return r.promptValue(f)
}

// firstElement peeks at the first byte of the array's first element.
func (r *reader) firstElement() byte {
	peek := scanner{data: r.s.data, pos: r.s.pos + 1}
	return peek.space()
}

// promptValue reads a string, a list of strings, of ids, or of lists of ids.
func (r *reader) promptValue(f *found) bool {
	*f = found{}
	switch r.s.space() {
	case '"':
		t, ok := r.s.str()
		f.text(t)
		return ok
	case '[':
	default:
		return r.s.skip()
	}
	switch r.firstElement() {
	case '"':
		return r.strings(f)
	case '[':
		return r.idLists(f)
	}
	ids, ok, pure := r.ids()
	if pure && len(ids) > 0 {
		f.kind, f.ids = prompt.KindIDs, ids
	}
	return ok
}

func (f *found) text(t text) {
	if len(t.raw) > 0 {
		f.kind, f.texts = prompt.KindText, append(f.texts, t)
	}
}

func (r *reader) strings(f *found) bool {
	pure := true
	ok := r.s.elements(func(int) bool {
		if !r.moreItems(len(f.texts), "prompts") {
			return false
		}
		if r.s.space() != '"' {
			pure = pure && r.s.atEnd()
			return r.s.skip()
		}
		t, ok := r.s.str()
		f.texts = append(f.texts, t)
		return ok
	})
	switch {
	case !pure || len(f.texts) == 0 || len(f.texts) == 1 && len(f.texts[0].raw) == 0:
		*f = found{}
	case len(f.texts) == 1:
		f.kind = prompt.KindText
	default:
		f.kind = prompt.KindBatch
	}
	return ok
}

func (r *reader) idLists(f *found) bool {
	pure := true
	ok := r.s.elements(func(n int) bool {
		if !r.moreItems(n, "prompts") {
			return false
		}
		if r.s.space() != '[' {
			pure = pure && r.s.atEnd()
			return r.s.skip()
		}
		ids, ok, clean := r.ids()
		if pure = pure && clean; pure && len(ids) > 0 {
			f.batch = append(f.batch, ids)
		}
		return ok
	})
	switch {
	case !pure || len(f.batch) == 0:
		*f = found{}
	case len(f.batch) == 1:
		f.kind, f.ids, f.batch = prompt.KindIDs, f.batch[0], nil
	default:
		f.kind = prompt.KindBatchIDs
	}
	return ok
}

// ids reads an array; pure says that it holds token ids only. On a text that ends inside the
// array, the ids before the cut are returned.
func (r *reader) ids() (ids []uint32, ok, pure bool) {
	s := &r.s
	pure = true
	if end := bytes.IndexByte(s.data[s.pos:], ']'); end > 1 {
		ids = make([]uint32, 0, 1+bytes.Count(s.data[s.pos:s.pos+end], []byte{','}))
	}
	ok = s.elements(func(int) bool {
		for { // plain "123,456," without leaving the loop
			id, next, plain := plainID(s.data, s.pos)
			if !plain {
				break
			}
			if pure {
				ids = append(ids, id)
			}
			s.pos = next
			if s.data[next] != ',' || next+1 >= len(s.data) || s.data[next+1]-'0' > 9 {
				return true
			}
			s.pos = next + 1
		}
		if start := s.pos; digits(s.data, start) < len(s.data) { // not a number that the end of the text may have cut
			pure = false
		}
		return s.skip()
	})
	return ids, ok, pure
}

// plainID reads an id in its simplest form that a byte follows; next is that byte's offset.
func plainID(d []byte, i int) (id uint32, next int, ok bool) {
	start := i
	var n uint64
	for i < len(d) && d[i]-'0' <= 9 && i-start < 11 {
		n = n*10 + uint64(d[i]-'0')
		i++
	}
	if i == start || i == len(d) || n > math.MaxUint32 || d[start] == '0' && i > start+1 {
		return 0, 0, false
	}
	switch d[i] {
	case ',', ']', ' ', '\n', '\r', '\t':
		return uint32(n), i, true
	}
	return 0, 0, false
}
