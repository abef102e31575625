package router

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
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
	story    *story
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
	asChat
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

// newTries makes the question to the chooser for the first attempt.
func newTries(rq *request) *tries {
	t := &tries{before: rq.standby.took, ask: chooser.Request{
		Settings: rq.policies, Bytes: rq.size(),
		Request: decision.Request{ID: rq.id, RequestID: rq.call.RequestID, Tenant: rq.call.Tenant, Model: rq.pool.Model, Adapter: rq.adapter, Side: sideOf(rq.side)},
		Pool:    chooser.Pool{Served: rq.pool.Served, Replicas: rq.pool.Replicas},
		Prompt:  chooser.Prompt{Unread: rq.parsed.Unread()},
		Caller:  chooser.Caller{Session: rq.apart(rq.parsed.Session), SessionReturn: rq.sessionReturn(), Priority: -rq.parsed.Priority},
		Reply: chooser.Reply{
			ExpectedOutput: rq.parsed.Expected(), OutputLimit: rq.parsed.MaxTokens, Samples: rq.parsed.N,
			Unstreamed: !rq.parsed.Stream, Uneven: len(rq.parsed.Raw("tools")) > 0,
		},
		Limits: chooser.Limits{Options: rq.call.Options, Holder: rq.holder},
	}}
	rq.prompt(&t.ask)
	t.ask.Splittable = rq.pool.Pairs && (rq.question == nil || rq.question.Booking == DryRun) && rq.upload == nil && openai.Splittable(rq.parsed)
	if rq.policies.ReadsText(rq.pool.Model, &rq.call.Options) {
		t.ask.Text = rq.apart(rq.parsed.PromptText())
	}
	return t
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

// truncated reports whether the body is the beginning of a longer one; nil asks nothing.
func (q *Question) truncated() bool { return q != nil && q.Truncated }

// path is where the engine serves the call.
func (c *Call) path() string {
	if c.Path != "" {
		return c.Path
	}
	return c.Route.Path()
}

// method is POST unless the client said otherwise.
func (c *Call) method() string {
	if c.Method != "" {
		return c.Method
	}
	return http.MethodPost
}
