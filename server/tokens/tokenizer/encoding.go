package tokenizer

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// Source says where ids came from.
type Source string

// The sources, cheapest first.
const (
	SourceBody         Source = "body"
	SourceExactCache   Source = "exact_cache"
	SourceConversation Source = "conversation"
	SourceRender       Source = "render"
	SourceTokenize     Source = "tokenize"
	// SourceNone: there are no ids; Reason says why, ApproximateHashes is what is left.
	SourceNone Source = "none"
)

// Reasons for SourceNone besides the kinds of remote.Fault.
const (
	ReasonNoPrompt   = "no_prompt"
	ReasonDisabled   = "disabled"
	ReasonEmpty      = "empty"
	ReasonUnmappable = "unmappable"
	// ReasonRefused: a tokenizer route refused the prompt.
	ReasonRefused = "refused"
	// ReasonNotRead: the policy does not look at the ids. It is no fault.
	ReasonNotRead = "not_read"
)

// ClientFault is the engine's refusal of the client's request: status and body go to the client.
type ClientFault = remote.ClientFault

// MediaItem is an image, clip or video among the ids.
type MediaItem = remote.Media

// Request is what Encode works on.
type Request struct {
	Prompt *prompt.Prompt
	// Replicas is the pool: all replicas that serve the model.
	Replicas []*replica.Replica
	// Pool is the model's name as clients use it; settings and learned facts go by it.
	Pool string
	// NeedFull waits for all ids; without it the known beginning of a conversation is enough.
	NeedFull bool
	// SizeOnly asks no replica: the caller wants ids only when they are in the body, else the
	// prompt's estimated length.
	SizeOnly bool
	// Span is the id of the span, going to be drawn, that the calls to replicas are parts of; not
	// valid, that is the one in ctx.
	Span trace.SpanID

	// native is the prompt in the client's own format, where a route for it may exist.
	native *prompt.Prompt
}

// Encoding is what is known about a prompt's ids.
type Encoding struct {
	// IDs are the ids of the prompt, or of the first one of a batch: the routing key. When
	// Partial they are only the beginning. Read-only.
	IDs []uint32
	// Batch has the ids of all prompts of a batch; nil for a single prompt or when only the
	// first one's are known.
	Batch [][]uint32
	// Media are the multimodal items among IDs, in order.
	Media   []MediaItem
	Source  Source
	Partial bool
	// Tokens is the length of the whole prompt, of all prompts of a batch: counted when
	// Exact, estimated from the text otherwise.
	Tokens int
	Exact  bool
	// MaxLen is the model's context length as the tokenizer gave it; 0 when unknown.
	MaxLen int
	// Reason says why Source is none; empty otherwise.
	Reason string

	// Answer is the answer to the known beginning of a Partial encoding, which the prompt continues with.
	Answer Answer

	entry  *entry
	prompt *prompt.Prompt
	// whole is the key under which the full ids will be kept; set when Partial.
	whole cache.Key
	later *later
}

// later is the whole encoding of a prompt whose beginning was answered with, once it is there.
type later struct {
	mu     sync.Mutex
	enc    *Encoding       // guarded by mu
	notify func(*Encoding) // guarded by mu
}

func (l *later) set(enc *Encoding) {
	l.mu.Lock()
	l.enc = enc
	notify := l.notify
	l.mu.Unlock()
	if notify != nil {
		notify(enc)
	}
}

// OnWhole has notify called with the whole encoding of a partial one when it is known: at once, or later from
// another goroutine, or never. The last call counts.
func (enc *Encoding) OnWhole(notify func(*Encoding)) {
	l := enc.later
	if l == nil {
		return
	}
	l.mu.Lock()
	whole := l.enc
	l.notify = notify
	l.mu.Unlock()
	if whole != nil {
		notify(whole)
	}
}

// Hashes returns the names of the complete blocks of enc.IDs in the namespace. They are
// computed once per encoding, block size and namespace and then shared: read-only.
func (enc *Encoding) Hashes(blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	if blockSize <= 0 || len(enc.IDs) < blockSize {
		return nil
	}
	if enc.entry == nil {
		return chain(nil, 0, enc.IDs, 0, enc.Media, blockSize, ns)
	}
	return enc.entry.hashesFor(len(enc.IDs), blockSize, ns)
}

// cutMargin is given away where the text was cut: more than the longest word's tokens.
const cutMargin = 32

// cutShort makes a full encoding of a cut text the beginning of the whole.
func (enc *Encoding) cutShort() {
	if enc.Source == SourceNone {
		return
	}
	n := max(0, len(enc.IDs)-cutMargin)
	enc.IDs, enc.Batch, enc.Partial, enc.Exact = enc.IDs[:n:n], nil, true, false
	if n == 0 {
		enc.Source, enc.Reason = SourceNone, ReasonEmpty
	}
}

// Longest is the length of the longest prompt, which the model's context must hold; 0 when it is not
// known exactly, or when the engine cuts it to its context.
func (enc *Encoding) Longest() int {
	if !enc.Exact || enc.prompt != nil && enc.prompt.Truncate < 0 {
		return 0
	}
	if len(enc.Batch) == 0 {
		return enc.Tokens
	}
	longest := 0
	for _, ids := range enc.Batch {
		longest = max(longest, len(ids))
	}
	return longest
}

// Hashes is Encoding.Hashes as a function.
func Hashes(enc *Encoding, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	return enc.Hashes(blockSize, ns)
}

// chain appends the hashes of the complete blocks of ids that follow the block parent, ids[0]
// being token number start of the prompt. A block that a media item overlaps is named by the
// item's content too.
func chain(dst []blockhash.Hash, parent blockhash.Hash, ids []uint32, start int, media []MediaItem, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	if len(media) == 0 {
		return blockhash.Extend(dst, parent, ids, blockSize, ns.Seed())
	}
	seed := ns.Seed()
	var items []string
	for at := start; len(ids) >= blockSize; at, ids = at+blockSize, ids[blockSize:] {
		items = items[:0]
		for _, m := range media {
			if m.Offset < at+blockSize && m.Offset+m.Length > at {
				items = append(items, m.Hash)
			}
		}
		local := blockhash.LocalWith(ids[:blockSize], seed, items)
		parent = blockhash.Next(parent, local)
		dst = append(dst, parent)
	}
	return dst
}

// entry is what the cache keeps of one prompt: its full ids and the hashes computed from them.
type entry struct {
	ids      []uint32
	batch    [][]uint32
	media    []MediaItem
	maxLen   int
	rendered bool
	// derived is set when the ids were joined from a known beginning and a delta instead of
	// coming from one answer.
	derived bool
	epoch   uint64
	// steps are those by which a derived entry was joined.
	steps []step

	// root is set when the ids are those of a root and not of a whole prompt.
	root bool
	// prev is the key of the entry that this one extends; zero when there is none.
	prev cache.Key
	// children counts the entries that extend this one.
	children atomic.Int32
	// answered packs the rank that last answered the prompt, plus one, and the answer's tokens; zero for none.
	answered atomic.Uint64

	mu     sync.Mutex
	hashes []hashes // guarded by mu; newest last, few
}

// hashes are the block hashes of an entry's ids for one block size and namespace.
type hashes struct {
	blockSize int
	ns        blockhash.Namespace
	list      []blockhash.Hash
}

// maxHashLists bounds the lists kept per entry; replicas of a pool rarely differ.
const maxHashLists = 3

// hashesFor returns the hashes of the complete blocks among the first n ids.
func (e *entry) hashesFor(n, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.hashes {
		if h := &e.hashes[i]; h.blockSize == blockSize && h.ns == ns {
			return h.upTo(e, n)
		}
	}
	if len(e.hashes) == maxHashLists {
		e.hashes = append(e.hashes[:0], e.hashes[1:]...)
	}
	e.hashes = append(e.hashes, hashes{blockSize: blockSize, ns: ns})
	return e.hashes[len(e.hashes)-1].upTo(e, n)
}

// upTo extends the list so that it covers the first n ids and returns that part. Earlier
// results keep their elements: the list only grows.
func (h *hashes) upTo(e *entry, n int) []blockhash.Hash {
	want := n / h.blockSize
	if have := len(h.list); have < want {
		if cap(h.list) < want {
			grown := make([]blockhash.Hash, have, len(e.ids)/h.blockSize)
			copy(grown, h.list)
			h.list = grown
		}
		var parent blockhash.Hash
		if have > 0 {
			parent = h.list[have-1]
		}
		h.list = chain(h.list, parent, e.ids[have*h.blockSize:want*h.blockSize], have*h.blockSize, e.media, h.blockSize, h.ns)
	}
	return h.list[:want:want]
}

// inherit takes over the hashes of the first n ids from an older entry that shares them.
func (e *entry) inherit(old *entry, n int) {
	old.mu.Lock()
	lists := make([]hashes, 0, len(old.hashes))
	for _, h := range old.hashes {
		keep := min(n/h.blockSize, len(h.list))
		list := make([]blockhash.Hash, keep, len(e.ids)/h.blockSize)
		copy(list, h.list[:keep])
		lists = append(lists, hashes{blockSize: h.blockSize, ns: h.ns, list: list})
	}
	old.mu.Unlock()
	e.mu.Lock()
	e.hashes = lists
	e.mu.Unlock()
}

// bytes is what the entry costs in memory, with one list of hashes at the smallest usual block.
func (e *entry) bytes() int {
	n := 4*len(e.ids) + len(e.ids)/2 + 200
	for _, ids := range e.batch {
		n += 4*len(ids) + 24
	}
	for _, m := range e.media {
		n += len(m.Hash) + 64
	}
	return n
}
