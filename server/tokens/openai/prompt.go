package openai

import (
	"bytes"
	"math"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// found is the value of a prompt, messages or input member. Its zero value is a value without a
// prompt in it: absent, null, empty or of a wrong type.
type found struct {
	kind  prompt.Kind
	texts []rawjson.Text
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
	if r.s.Space() != '[' {
		return r.s.Skip()
	}
	onlyObjects := true
	ok := r.s.Elements(func(int) bool {
		if !r.moreItems(len(f.items), "messages") {
			return false
		}
		start := r.s.Pos
		if r.s.Space() != '{' {
			onlyObjects = onlyObjects && r.s.AtEnd() // an end in front of the next message spoils nothing
			return r.s.Skip()
		}
		media, ok := r.message()
		if !ok {
			if r.truncated && r.s.EOF {
				if cut := cutMessage(r.s.Data[start:]); cut != nil {
					f.media, f.items = f.media || media, append(f.items, cut)
				}
			}
			return false
		}
		f.media = f.media || media
		if f.items == nil {
			f.items = make([][]byte, 0, 8)
		}
		f.items = append(f.items, r.s.Data[start:r.s.Pos:r.s.Pos])
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
// and of the pooling routes, which take inputs shaped like prompts.
func (r *reader) promptOrList(f *found) bool {
	if r.s.Space() == '[' && r.firstElement() == '{' {
		return r.list(f)
	}
	return r.promptValue(f)
}

// firstElement peeks at the first byte of the array's first element.
func (r *reader) firstElement() byte {
	peek := rawjson.Scanner{Data: r.s.Data, Pos: r.s.Pos + 1}
	return peek.Space()
}

// promptValue reads a string, a list of strings, of ids, or of lists of ids.
func (r *reader) promptValue(f *found) bool {
	*f = found{}
	switch r.s.Space() {
	case '"':
		t, ok := r.s.Text()
		f.text(t)
		return ok
	case '[':
	default:
		return r.s.Skip()
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

func (f *found) text(t rawjson.Text) {
	if len(t.Raw) > 0 {
		f.kind, f.texts = prompt.KindText, append(f.texts, t)
	}
}

func (r *reader) strings(f *found) bool {
	pure := true
	ok := r.s.Elements(func(int) bool {
		if !r.moreItems(len(f.texts), "prompts") {
			return false
		}
		if r.s.Space() != '"' {
			pure = pure && r.s.AtEnd()
			return r.s.Skip()
		}
		t, ok := r.s.Text()
		f.texts = append(f.texts, t)
		return ok
	})
	switch {
	case !pure || len(f.texts) == 0 || len(f.texts) == 1 && len(f.texts[0].Raw) == 0:
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
	ok := r.s.Elements(func(n int) bool {
		if !r.moreItems(n, "prompts") {
			return false
		}
		if r.s.Space() != '[' {
			pure = pure && r.s.AtEnd()
			return r.s.Skip()
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
	if end := bytes.IndexByte(s.Data[s.Pos:], ']'); end > 1 {
		ids = make([]uint32, 0, 1+bytes.Count(s.Data[s.Pos:s.Pos+end], []byte{','}))
	}
	ok = s.Elements(func(int) bool {
		for { // plain "123,456," without leaving the loop
			id, next, plain := plainID(s.Data, s.Pos)
			if !plain {
				break
			}
			if pure {
				ids = append(ids, id)
			}
			s.Pos = next
			if s.Data[next] != ',' || next+1 >= len(s.Data) || s.Data[next+1]-'0' > 9 {
				return true
			}
			s.Pos = next + 1
		}
		if rawjson.Digits(s.Data, s.Pos) < len(s.Data) { // not a number that the end of the text may have cut
			pure = false
		}
		return s.Skip()
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
