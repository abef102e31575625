package intake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// Request is one call: what came in, and what was learnt of it before the first choice. The attempts only read it.
type Request struct {
	Call *Call
	// Question is set when the caller sends the request itself, OnlyIDs when it asks for token ids and no choice.
	Question *Question
	OnlyIDs  bool
	Settings *settings
	Policies *chooser.Settings
	// Span is the surface's, Story the notes from which the spans below it are drawn; nil when nothing is recorded.
	Span     trace.Span
	Story    *story.Story
	Received time.Time
	// ID names the decision and the reservation. It is ours: a client may use an id twice.
	ID string
	// Grant is what the tenant's limits allow; nil when there are none, or when a reservation has it.
	Grant  *quota.Grant
	Parsed *openai.Request
	// Body is what replicas receive: the client's bytes, or those with the model's name or the prompt's ids put in.
	// Upload is the body instead, on routes that forward the body as it arrives.
	Body   []byte
	Upload *upload
	changes
	pooled
	// Holder is the replica that stores the response which the request continues; empty for none.
	Holder replica.ID
	tokenized
	carried
	standIn
}

// pooled are the replicas among which a request is routed.
type pooled struct {
	Pool *registry.Pool
	// Adapter is the LoRA adapter that the blocks belong to; empty for the base model.
	Adapter string
	// Standby is the wait for the first replica of the model.
	Standby waited
	// Side is the request's side of a split; nil where its model is not split.
	Side *splits.Assignment
}

// tokenized is what is known of the prompt's ids.
type tokenized struct {
	// Enc is nil on routes with prompts that engines do not cache.
	Enc        *tokenizer.Encoding
	Tokenizing time.Duration
	// Refused is a tokenizer route's refusal of the prompt, which the request is sent without ids in spite of.
	Refused *tokenizer.ClientFault
	// Directory is the answer of a directory about the prompt; nil when none was asked.
	Directory *directory.Answer
}

// changes are what the router changes of what the client says to the engine.
type changes struct {
	// Lowered is set when the request claims a higher priority than its tenant may, Isolated when it has its tenant's salt.
	Lowered, Isolated bool
	// Dropped is what would have steered the engine's KV connector.
	Dropped openai.Steering
}

// NewID makes a name that no other request of any router has. It begins with origin.
func NewID(origin string) string {
	var b [12]byte
	rand.Read(b[:])
	id := hex.EncodeToString(b[:])
	return origin + id[min(len(origin), len(id)):]
}

// usePool fixes which engine model the request is for.
func (rq *Request) usePool(p *registry.Pool) {
	rq.Pool, rq.Adapter = p, p.Adapter
	rq.Parsed.Prompt.Model = p.Served
	rq.Parsed.Prompt.Adapter = p.Adapter
	switch {
	case rq.Upload != nil:
		rq.Upload.rename(p.Served)
	case rq.Call.Model != "":
		rq.Body = rq.Parsed.Edit(openai.ModelEdit(p.Served))
	case rq.Parsed.Model != "":
		rq.Body = rq.Parsed.WithModel(p.Served)
	default:
		rq.Body = rq.Parsed.Edit()
	}
}

// SessionReturn is in how long the request says that its session returns.
func (rq *Request) SessionReturn() time.Duration {
	if rq.Parsed.SessionEnds {
		return chooser.NoReturn
	}
	return rq.Parsed.SessionReturn
}

// Size is the body's size, as far as it is known.
func (rq *Request) Size() int {
	if rq.Upload != nil {
		return rq.Upload.size()
	}
	return len(rq.Body)
}

// maxPrompt bounds the prompt that a cut body's full size is taken to stand for; no context is that long.
const maxPrompt = 16 << 20

// FillPrompt fills in what is known of the prompt's place in a cache.
func (rq *Request) FillPrompt(a *chooser.Request) {
	a.Keyless = true
	if rq.Enc == nil {
		return
	}
	a.PromptTokens, a.Estimated = rq.tokens(), !rq.Enc.Exact
	a.Longest = rq.Enc.Longest()
	a.Answer, a.Directory = chooser.Answer(rq.Enc.Answer), rq.Directory
	if !rq.needsHashes() {
		return
	}
	ns := rq.Namespace()
	switch {
	case rq.Enc.Known() > 0:
		a.Keyless = false
		a.Hashes = func(blockSize int) []blockhash.Hash { return rq.Enc.Hashes(blockSize, ns) }
	case rq.Parsed.Prompt.Kind != prompt.KindNone: // no ids: keys made of the text keep conversations together
		a.Hashes = func(blockSize int) []blockhash.Hash {
			return tokenizer.ApproximateHashes(nil, &rq.Parsed.Prompt, blockSize, ns)
		}
	}
}

// needsHashes reports whether the prompt's blocks may decide this request or a later one of its model. If neither the
// model's policies nor the request's options read the cache, nothing is hashed and nothing is written to the index.
func (rq *Request) needsHashes() bool {
	return rq.wantsIDs() || rq.Policies.ReadsCache(rq.Pool.Model, &rq.Call.Options) || rq.Policies.ReadsCache(rq.Pool.Model, &chooser.Options{})
}

// tokens is the number of the prompt's tokens; of a cut one, about.
func (rq *Request) tokens() int {
	if have := int64(len(rq.Call.Body)); rq.Parsed.Truncated && have > 0 && rq.Question != nil && rq.Question.FullSize > have {
		return int(min(float64(rq.Enc.Tokens)*float64(rq.Question.FullSize)/float64(have), maxPrompt))
	}
	return rq.Enc.Tokens
}

// waited is a request's wait for the first replica of its model.
type waited struct {
	Took time.Duration
	// To is the client, which learns at the wait's begin that the answer is awaited; nil: it does not. announced is set once it has.
	To        Sink
	announced bool
}

// Await announces an answer that is a stream of events.
func (rq *Request) Await(to Sink) {
	if to, ok := to.(Awaiter); ok && rq.Parsed.Stream && rq.Parsed.Prompt.API != prompt.APIOther && !rq.Standby.announced {
		rq.Standby.announced = true
		to.Await()
	}
}

// Apart prefixes a key of the caller's with the request's salt, if blocks are isolated: tenants never share a key.
func (rq *Request) Apart(key string) string {
	if !rq.Isolated || key == "" {
		return key
	}
	return rq.Parsed.Salt + "\x00" + key
}

// wantsIDs reports whether the caller asks for ids or overlaps, whether the policy looks at them or not.
func (rq *Request) wantsIDs() bool {
	return rq.OnlyIDs || rq.Question != nil && rq.Question.Booking == DryRun
}

// Namespace is that of the blocks that the request's prompt becomes.
func (rq *Request) Namespace() blockhash.Namespace {
	return blockhash.Namespace{Adapter: rq.Adapter, Salt: rq.Parsed.Salt}
}

// EncodeRequest is the question to the tokenizer.
func (rq *Request) EncodeRequest() tokenizer.Request {
	return tokenizer.Request{Prompt: &rq.Parsed.Prompt, Pool: rq.Pool.Served, Tenant: rq.Call.Tenant, Replicas: rq.Pool.Replicas, NeedFull: rq.OnlyIDs}
}

// Refusal is the tokenizer route's answer as the client's.
func (t *tokenized) Refusal() *apierror.Error {
	return apierror.Upstream(t.Refused.Status, t.Refused.ContentType, t.Refused.Body)
}

// Header is what replicas see of the client's headers.
func (rq *Request) Header() http.Header {
	if !rq.Lowered || rq.Call.Header.Get(HeaderPriority) == "" {
		return rq.Call.Header
	}
	h := maps.Clone(rq.Call.Header)
	h[HeaderPriority] = []string{strconv.Itoa(rq.Parsed.Priority)}
	return h
}

// HeaderPriority is the request's priority at the engine, smaller first; it wins over the body's.
const HeaderPriority = "X-Vllm-Priority"

// EngineID is the request id that the engine gets: the client's, or the router's own instead of one with a connector's
// addresses in it.
func (rq *Request) EngineID() string {
	if rq.Call.Steers || !openai.MarksAddress(rq.Call.RequestID) {
		return rq.Call.RequestID
	}
	return rq.ID
}

// TokensIn is about how many tokens came in n content events of a stream: each format but that of completions begins
// with an event that has none, chat for each of its choices.
func (rq *Request) TokensIn(n int) int {
	switch rq.Parsed.Prompt.API {
	case prompt.APIChat:
		return max(1, n-rq.Parsed.N)
	case prompt.APIResponses, prompt.APIMessages:
		return max(1, n-1)
	case prompt.APICompletions, prompt.APIOther:
	}
	return n
}

// PromptSize is the number of the prompt's tokens, as far as it is known before an engine reports it.
func (rq *Request) PromptSize() int {
	switch {
	case rq.Enc != nil:
		return rq.tokens()
	case rq.Upload != nil:
		return 0 // the tokens of a recording are not known
	}
	switch rq.Call.Route {
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		return 0 // nothing is computed
	case openai.RouteOther:
		if strings.HasSuffix(rq.Call.EnginePath(), "render") {
			return 0
		}
	default:
	}
	return len(rq.Body) / bytesPerToken
}

// TemplateTokens bounds the tokens that a chat template adds to a prompt of which only the bytes are known.
const TemplateTokens = 1024

// bytesPerToken estimates the tokens of a prompt if only its size is known.
const bytesPerToken = 4

// carried is the client's part in a stream whose events it keeps, so that any router can continue it: no router keeps anything of it.
type carried struct {
	// Keeps is set when the client gets the ids of its stream and keeps them.
	Keeps bool
	// Events are the client's events, when it asks for the rest of a stream that another router has begun; nil otherwise.
	Events []byte
	// Before is how many tokens of the answer these are.
	Before int
}

// surfaces reports whether a tokenizer route's refusal is the answer to the client: where nothing but the ids
// is asked for; where no engine will be asked and one would refuse; and where one would in these very words.
func (rq *Request) surfaces(f *tokenizer.ClientFault) bool {
	switch {
	case rq.OnlyIDs:
		return true
	case rq.Question != nil:
		return f.Firm
	}
	return f.Firm && f.Rendered
}

// standIn is a request to engines in place of the client's, so that another one can continue the answer. The zero value is a
// request that is sent unchanged.
type standIn struct {
	// Chat is a streamed message as the chat request that vLLM makes of it. Chunks of a chat have token ids; events of messages have none.
	Chat *openai.Request
	// Streamed is an unstreamed request as a streamed one.
	Streamed *openai.Request
	// Carrying is the stream where its client carries it, for a router that stops; nil for any other.
	Carrying *Carrying
}

// Clear has the client's request sent unchanged from now on. No other router can continue a stream of it that is a message.
func (c *standIn) Clear() {
	if c.Chat != nil && c.Carrying != nil {
		c.Carrying.Finishes.Store(true)
	}
	c.Chat, c.Streamed = nil, nil
}

// Or returns the request in place of the client's, or parsed when there is none: the request that another engine continues.
func (c *standIn) Or(parsed *openai.Request) *openai.Request {
	switch {
	case c.Chat != nil:
		return c.Chat
	case c.Streamed != nil:
		return c.Streamed
	}
	return parsed
}

// OrBody returns the body of the request in the client's place, or body when there is none.
func (c *standIn) OrBody(body []byte) []byte {
	if instead := c.Or(nil); instead != nil {
		return instead.Body
	}
	return body
}

// Carrying is a stream that its client carries. finishes is set once no other router can continue it.
type Carrying struct {
	End      context.CancelCauseFunc
	Finishes atomic.Bool
}
