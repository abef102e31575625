package tokenizer

import (
	"sync"

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
	// SourceNone: there are no ids; Reason says why, only ApproximateHashes are left.
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
	// ReasonMemory: other requests in flight fill Config.HeldBytes.
	ReasonMemory = "memory"
)

// ClientFault is the engine's refusal of the client's request: status and body go to the client.
type ClientFault = remote.ClientFault

// MediaItem is an image, clip or video among the ids.
type MediaItem = remote.Media

// Request is the input of Encode.
type Request struct {
	Prompt *prompt.Prompt
	// Replicas is the pool: all replicas that serve the model.
	Replicas []*replica.Replica
	// Pool is the model's name as clients use it; settings and learned facts go by it.
	Pool string
	// Tenant owns the prompt; empty when callers need no key.
	Tenant string
	// NeedFull waits for all ids; without it the known beginning of a conversation is enough.
	NeedFull bool
	// Keep is the length up to which the caller reads the ids of a whole prompt as long as the request is in flight; blocks are named for Namespace.
	Keep      int
	Namespace blockhash.Namespace
	// SizeOnly asks no replica: the caller wants ids only when they are in the body, else the
	// prompt's estimated length.
	SizeOnly bool
	// Span is the id of the span, going to be drawn, that the calls to replicas are parts of; not valid, that is the span in ctx.
	Span trace.SpanID

	// native is the prompt in the client's own format, where a route for it may exist.
	native *prompt.Prompt
}

// Encoding has the known facts about a prompt's ids.
type Encoding struct {
	// IDs are the ids of the prompt, or of the first one of a batch: the routing key. When
	// Partial they are only the beginning. Read-only. They are nil when a request in flight does not need them: Known counts them.
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

	// entry is the cache's record of the prompt, given the holder of the hashes of ids that the client gave: they are not cached. Both are nil
	// once the ids were let go, and remains says what there was.
	entry   *entry
	given   *entry
	names   *names
	remains remains
	prompt  *prompt.Prompt
	// whole is the key under which the full ids will be kept; set when Partial.
	whole cache.Key
	later *later
	grip  grip
}

// later is the whole encoding of a prompt, available some time after its beginning was returned.
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
// computed once per encoding, block size and namespace and then shared: read-only. Once the ids were let go, a size that none of the model's
// prompts was named in has none.
func (enc *Encoding) Hashes(blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	known := enc.Known()
	if blockSize <= 0 || known < blockSize {
		return nil
	}
	if enc.remains.sizes != nil {
		enc.remains.sizes.note(blockSize)
	}
	e := enc.entry
	if e == nil {
		e = enc.given
	}
	switch {
	case e == nil && enc.names != nil:
		return enc.names.hashed(known, blockSize, ns)
	case e == nil:
		return chain(nil, 0, enc.IDs, 0, enc.Media, blockSize, ns)
	}
	return e.hashesFor(known, blockSize, ns)
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
	if enc.remains.longest > 0 {
		return enc.remains.longest
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
