package router

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
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// request is one call: what came in, and what was learnt of it before the first choice. The attempts only read it.
type request struct {
	call *Call
	// question is set when the caller sends the request itself, onlyIDs when it asks for token ids and no choice.
	question *Question
	onlyIDs  bool
	set      *settings
	policies *chooser.Settings
	// span is the surface's, story the notes from which the spans below it are drawn; nil when nothing is recorded.
	span     trace.Span
	story    *story.Story
	received time.Time
	// id names the decision and the reservation. It is ours: a client may use an id twice.
	id string
	// grant is what the tenant's limits allow; nil when there are none, or when a reservation has it.
	grant  *quota.Grant
	parsed *openai.Request
	// body is what replicas receive: the client's bytes, or those with the model's name or the prompt's ids put in.
	// upload is the body instead, on routes that forward the body as it arrives.
	body   []byte
	upload *upload
	changes
	pooled
	// holder is the replica that stores the response which the request continues; empty for none.
	holder replica.ID
	tokenized
	carried
	standIn
}

// pooled are the replicas among which a request is routed.
type pooled struct {
	pool *registry.Pool
	// adapter is the LoRA adapter that the blocks belong to; empty for the base model.
	adapter string
	// standby is the wait for the first replica of the model.
	standby waited
	// side is the request's side of a split; nil where its model is not split.
	side *splits.Assignment
}

// tokenized is what is known of the prompt's ids.
type tokenized struct {
	// enc is nil on routes with prompts that engines do not cache.
	enc        *tokenizer.Encoding
	tokenizing time.Duration
	// refused is a tokenizer route's refusal of the prompt, which the request is sent without ids in spite of.
	refused *tokenizer.ClientFault
}

// changes are what the router changes of what the client says to the engine.
type changes struct {
	// lowered is set when the request claims a higher priority than its tenant may, isolated when it has its tenant's salt.
	lowered, isolated bool
	// dropped is what would have steered the engine's KV connector.
	dropped openai.Steering
}

// newID makes a name that no other request of any router has. It begins with origin.
func newID(origin string) string {
	var b [12]byte
	rand.Read(b[:])
	id := hex.EncodeToString(b[:])
	return origin + id[min(len(origin), len(id)):]
}

// usePool fixes which engine model the request is for.
func (rq *request) usePool(p *registry.Pool) {
	rq.pool, rq.adapter = p, p.Adapter
	rq.parsed.Prompt.Model = p.Served
	rq.parsed.Prompt.Adapter = p.Adapter
	switch {
	case rq.upload != nil:
		rq.upload.rename(p.Served)
	case rq.call.Model != "":
		rq.body = rq.parsed.Edit(openai.ModelEdit(p.Served))
	case rq.parsed.Model != "":
		rq.body = rq.parsed.WithModel(p.Served)
	default:
		rq.body = rq.parsed.Edit()
	}
}

// sessionReturn is in how long the request says that its session returns.
func (rq *request) sessionReturn() time.Duration {
	if rq.parsed.SessionEnds {
		return chooser.NoReturn
	}
	return rq.parsed.SessionReturn
}

// size is the body's size, as far as it is known.
func (rq *request) size() int {
	if rq.upload != nil {
		return rq.upload.size()
	}
	return len(rq.body)
}

// maxPrompt bounds the prompt that a cut body's full size is taken to stand for; no context is that long.
const maxPrompt = 16 << 20

// prompt fills in what is known of the prompt's place in a cache.
func (rq *request) prompt(a *chooser.Request) {
	a.Keyless = true
	if rq.enc == nil {
		return
	}
	a.PromptTokens, a.Estimated = rq.tokens(), !rq.enc.Exact
	a.Longest = rq.enc.Longest()
	a.Answer = chooser.Answer(rq.enc.Answer)
	if !rq.needsHashes() {
		return
	}
	ns := rq.namespace()
	switch {
	case rq.enc.Known() > 0:
		a.Keyless = false
		a.Hashes = func(blockSize int) []blockhash.Hash { return rq.enc.Hashes(blockSize, ns) }
	case rq.parsed.Prompt.Kind != prompt.KindNone: // no ids: keys made of the text keep conversations together
		a.Hashes = func(blockSize int) []blockhash.Hash {
			return tokenizer.ApproximateHashes(nil, &rq.parsed.Prompt, blockSize, ns)
		}
	}
}

// needsHashes reports whether the prompt's blocks may decide this request or a later one of its model. If neither the
// model's policies nor the request's options read the cache, nothing is hashed and nothing is written to the index.
func (rq *request) needsHashes() bool {
	return rq.wantsIDs() || rq.policies.ReadsCache(rq.pool.Model, &rq.call.Options) || rq.policies.ReadsCache(rq.pool.Model, &chooser.Options{})
}

// tokens is the number of the prompt's tokens; of a cut one, about.
func (rq *request) tokens() int {
	if have := int64(len(rq.call.Body)); rq.parsed.Truncated && have > 0 && rq.question != nil && rq.question.FullSize > have {
		return int(min(float64(rq.enc.Tokens)*float64(rq.question.FullSize)/float64(have), maxPrompt))
	}
	return rq.enc.Tokens
}

// waited is a request's wait for the first replica of its model.
type waited struct {
	took time.Duration
	// to is the client, which learns at the wait's begin that the answer is awaited; nil: it does not. announced is set once it has.
	to        Sink
	announced bool
}

// await announces an answer that is a stream of events.
func (rq *request) await(to Sink) {
	if to, ok := to.(Awaiter); ok && rq.parsed.Stream && rq.parsed.Prompt.API != prompt.APIOther && !rq.standby.announced {
		rq.standby.announced = true
		to.Await()
	}
}

// apart prefixes a key of the caller's with the request's salt, if blocks are isolated: tenants never share a key.
func (rq *request) apart(key string) string {
	if !rq.isolated || key == "" {
		return key
	}
	return rq.parsed.Salt + "\x00" + key
}

// wantsIDs reports whether the caller asks for ids or overlaps, whether the policy looks at them or not.
func (rq *request) wantsIDs() bool {
	return rq.onlyIDs || rq.question != nil && rq.question.Booking == DryRun
}

// namespace is that of the blocks that the request's prompt becomes.
func (rq *request) namespace() blockhash.Namespace {
	return blockhash.Namespace{Adapter: rq.adapter, Salt: rq.parsed.Salt}
}

// encodeRequest is the question to the tokenizer.
func (rq *request) encodeRequest() tokenizer.Request {
	return tokenizer.Request{Prompt: &rq.parsed.Prompt, Pool: rq.pool.Served, Tenant: rq.call.Tenant, Replicas: rq.pool.Replicas, NeedFull: rq.onlyIDs}
}

// refusal is the tokenizer route's answer as the client's.
func (t *tokenized) refusal() *apierror.Error {
	return apierror.Upstream(t.refused.Status, t.refused.ContentType, t.refused.Body)
}

// header is what replicas see of the client's headers.
func (rq *request) header() http.Header {
	if !rq.lowered || rq.call.Header.Get(headerPriority) == "" {
		return rq.call.Header
	}
	h := maps.Clone(rq.call.Header)
	h[headerPriority] = []string{strconv.Itoa(rq.parsed.Priority)}
	return h
}

// headerPriority is the request's priority at the engine, smaller first; it wins over the body's.
const headerPriority = "X-Vllm-Priority"

// engineID is the request id that the engine gets: the client's, or the router's own instead of one with a connector's
// addresses in it.
func (rq *request) engineID() string {
	if rq.call.Steers || !openai.MarksAddress(rq.call.RequestID) {
		return rq.call.RequestID
	}
	return rq.id
}

// tokensIn is about how many tokens came in n content events of a stream: each format but that of completions begins
// with an event that has none, chat for each of its choices.
func (rq *request) tokensIn(n int) int {
	switch rq.parsed.Prompt.API {
	case prompt.APIChat:
		return max(1, n-rq.parsed.N)
	case prompt.APIResponses, prompt.APIMessages:
		return max(1, n-1)
	case prompt.APICompletions, prompt.APIOther:
	}
	return n
}

// promptSize is the number of the prompt's tokens, as far as it is known before an engine reports it.
func (rq *request) promptSize() int {
	switch {
	case rq.enc != nil:
		return rq.tokens()
	case rq.upload != nil:
		return 0 // the tokens of a recording are not known
	}
	switch rq.call.Route {
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		return 0 // nothing is computed
	case openai.RouteOther:
		if strings.HasSuffix(rq.call.path(), "render") {
			return 0
		}
	default:
	}
	return len(rq.body) / bytesPerToken
}

// templateTokens bounds the tokens that a chat template adds to a prompt of which only the bytes are known.
const templateTokens = 1024

// bytesPerToken estimates the tokens of a prompt if only its size is known.
const bytesPerToken = 4

// carried is the client's part in a stream whose events it keeps, so that any router can continue it: no router keeps anything of it.
type carried struct {
	// keeps is set when the client gets the ids of its stream and keeps them.
	keeps bool
	// has are the client's events, when it asks for the rest of a stream that another router has begun; nil otherwise.
	has []byte
	// before is how many tokens of the answer these are.
	before int
}

// surfaces reports whether a tokenizer route's refusal is the answer to the client: where nothing but the ids
// is asked for; where no engine will be asked and one would refuse; and where one would in these very words.
func (rq *request) surfaces(f *tokenizer.ClientFault) bool {
	switch {
	case rq.onlyIDs:
		return true
	case rq.question != nil:
		return f.Firm
	}
	return f.Firm && f.Rendered
}

// standIn is a request to engines in place of the client's, so that another one can continue the answer. The zero value is a
// request that is sent unchanged.
type standIn struct {
	// chat is a streamed message as the chat request that vLLM makes of it. Chunks of a chat have token ids; events of messages have none.
	chat *openai.Request
	// streamed is an unstreamed request as a streamed one.
	streamed *openai.Request
	// carrying is the stream where its client carries it, for a router that stops; nil for any other.
	carrying *carrying
}

// clear has the client's request sent unchanged from now on. No other router can continue a stream of it that is a message.
func (c *standIn) clear() {
	if c.chat != nil && c.carrying != nil {
		c.carrying.finishes.Store(true)
	}
	c.chat, c.streamed = nil, nil
}

// or returns the request in place of the client's, or parsed when there is none: the request that another engine continues.
func (c *standIn) or(parsed *openai.Request) *openai.Request {
	switch {
	case c.chat != nil:
		return c.chat
	case c.streamed != nil:
		return c.streamed
	}
	return parsed
}

// orBody returns the body of the chat, or body when there is none.
func (c *standIn) orBody(body []byte) []byte {
	if c.chat != nil {
		return c.chat.Body
	}
	return body
}

// carrying is a stream that its client carries. finishes is set once no other router can continue it.
type carrying struct {
	end      context.CancelCauseFunc
	finishes atomic.Bool
}
