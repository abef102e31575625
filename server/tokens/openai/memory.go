package openai

import (
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

const (
	// minRemembered is the size below which reading a body costs no more than remembering it.
	minRemembered = 4 << 10
	// seenSlots is how many bodies are known by their outline, and by their hash; a power of two.
	seenSlots = 4096
	// outlineSamples pieces of outlineBytes each make a body's outline.
	outlineSamples = 8
	outlineBytes   = 16
)

// Memory remembers the results of Read for large bodies, so that an identical body, byte for byte,
// is only hashed. One that is new costs a look at a few of its bytes, its outline. A body is hashed when its outline is seen for
// the second time, and remembered when its hash is: forms that a program fills in, with a number in a long text, have one outline for all.
// It keeps offsets and decoded values, not the bodies.
//
// A nil Memory remembers nothing. Its methods are safe for concurrent use.
type Memory struct {
	seed     uint64 // secret to the process: clients cannot prepare collisions
	outlines [seenSlots]atomic.Uint64
	hashes   [seenSlots]atomic.Uint64
	known    *cache.Cache[remembered]
}

// NewMemory makes a Memory of at most maxBytes.
func NewMemory(maxBytes int64) *Memory {
	return &Memory{seed: rand.Uint64(), known: cache.New[remembered](maxBytes)}
}

// Read is the function Read; the Prompt of a body that was seen before has a digest.
func (m *Memory) Read(p Params) (*Request, error) {
	if m == nil || p.Truncated || len(p.Body) < minRemembered || !m.isOutlineKnown(p) {
		return Read(p)
	}
	sum := xxh3.Hash128Seed(p.Body, m.seed+uint64(p.Route))
	key := cache.Key{Hi: sum.Hi, Lo: sum.Lo}
	if known := m.known.Get(key); known != nil && known.size == len(p.Body) {
		r := known.on(p.Body)
		r.applyHeaders(p)
		return r, nil
	}
	r, err := Read(p)
	if err != nil {
		return nil, err
	}
	r.Prompt.Digest = prompt.Digest{Hi: sum.Hi, Lo: sum.Lo}
	if !before(&m.hashes, sum.Lo) {
		return r, nil
	}
	if k, bytes := remember(r); k != nil {
		m.known.Put(key, k, bytes)
	}
	return r, nil
}

// before reports whether the name was noted before, and notes it.
func before(names *[seenSlots]atomic.Uint64, name uint64) bool {
	return names[name%seenSlots].Swap(name) == name
}

// isOutlineKnown reports whether a body of this outline came before, and notes it.
func (m *Memory) isOutlineKnown(p Params) bool {
	var outline [outlineSamples * outlineBytes]byte
	stride := (len(p.Body) - outlineBytes) / (outlineSamples - 1)
	for i := range outlineSamples {
		copy(outline[i*outlineBytes:], p.Body[i*stride:i*stride+outlineBytes])
	}
	return before(&m.outlines, xxh3.HashSeed(outline[:], m.seed^uint64(len(p.Body))^uint64(p.Route)<<56))
}

// spot is a part of a body.
type spot struct{ from, to uint32 }

func (s spot) in(body []byte) []byte { return body[s.from:s.to:s.to] }

// remembered is a Request without its body: a pointer into the body is a spot.
type remembered struct {
	size     int
	request  Request
	messages []spot
	fields   []spot // of request.Prompt.Fields
	text     spot   // when the prompt's text stands in the body as it is
}

// remember takes r apart, and says what it costs to keep; nil when it cannot be kept.
func remember(r *Request) (*remembered, int) {
	if len(r.Prompt.Texts) > 0 || int64(len(r.Body)) > 1<<31 {
		return nil, 0
	}
	k := &remembered{size: len(r.Body), request: *r}
	q := &k.request
	bytes := int(unsafe.Sizeof(*k)) + len(q.members)*int(unsafe.Sizeof(member{})) + 4*len(q.Prompt.IDs)
	for _, list := range q.Prompt.Batch {
		bytes += 4*len(list) + int(unsafe.Sizeof(list))
	}
	if q.Prompt.Text != "" {
		if at, ok := spotOf(r.Body, unsafe.Slice(unsafe.StringData(q.Prompt.Text), len(q.Prompt.Text))); ok {
			k.text, q.Prompt.Text = at, ""
		}
	}
	for _, text := range []string{q.Prompt.Text, q.Model, q.Session, q.Salt, q.User, q.RequestID, q.PreviousResponse, q.own.session, q.own.xargs, q.own.cacheKey} {
		bytes += len(text)
	}
	for _, m := range q.members {
		bytes += len(m.name)
	}
	whole := true
	note := func(part []byte) (s spot) {
		s, ok := spotOf(r.Body, part)
		whole, bytes = whole && ok, bytes+int(unsafe.Sizeof(s))
		return s
	}
	for _, message := range r.Prompt.Messages {
		k.messages = append(k.messages, note(message))
	}
	q.Prompt.Fields = make([]prompt.Field, len(r.Prompt.Fields))
	for i, f := range r.Prompt.Fields {
		k.fields = append(k.fields, note(f.Value))
		q.Prompt.Fields[i].Name, bytes = f.Name, bytes+len(f.Name)+int(unsafe.Sizeof(f))
	}
	if !whole {
		return nil, 0
	}
	q.Body, q.Prompt.Body, q.Prompt.Messages = nil, nil, nil
	return k, bytes
}

// on is the request read from a body that equals the remembered one.
func (k *remembered) on(body []byte) *Request {
	r := &Request{}
	*r = k.request
	p := &r.Prompt
	r.Body, p.Body = body, body
	if len(k.messages) > 0 {
		p.Messages = make([][]byte, len(k.messages))
		for i, s := range k.messages {
			p.Messages[i] = s.in(body)
		}
	}
	if len(k.fields) > 0 {
		p.Fields = make([]prompt.Field, len(k.fields))
		for i, s := range k.fields {
			p.Fields[i] = prompt.Field{Name: k.request.Prompt.Fields[i].Name, Value: s.in(body)}
		}
	} else {
		p.Fields = nil
	}
	if k.text.to > 0 {
		p.Text = unsafe.String(&body[k.text.from], int(k.text.to-k.text.from))
	}
	return r
}

// spotOf finds where part stands in body; false when it is not a part of it.
func spotOf(body, part []byte) (spot, bool) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(body)))
	if from > uintptr(len(body)) || uintptr(len(part)) > uintptr(len(body))-from {
		return spot{}, false
	}
	return spot{uint32(from), uint32(from) + uint32(len(part))}, true
}
