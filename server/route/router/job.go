package router

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// job is one call on its way through the steps. It belongs to one goroutine.
type job struct {
	call *Call
	set  *settings
	// settings are the chooser's.
	settings *chooser.Settings
	// span is the surface's, and story what is going to be drawn below it; nil when nobody records.
	span  trace.Span
	story *story
	// id names the decision and the reservation. It is ours: a client's id may come twice.
	id   string
	req  *openai.Request
	pool *registry.Pool
	// enc is what is known of the prompt's ids; nil on routes whose prompts have no place in a cache.
	enc *tokenizer.Encoding
	// handedOff says that the engine is given the ids instead of the text.
	handedOff bool
	// holder is the replica that stores the response which the request continues; empty for none.
	holder replica.ID
	// outside says that the caller sends the request itself.
	outside bool
	// adapter is the LoRA adapter whose blocks are meant; empty for the base model.
	adapter string
	// truncated says that the body is a prefix; needFull that a known beginning is not enough.
	truncated, needFull bool
	// fullSize is the size of the body that a cut one is the beginning of; 0 when it is not known.
	fullSize int64
	// choosing says that the caller sends the request, not the router.
	choosing bool
	// refused is a tokenizer route's refusal of the prompt, which went on without ids.
	refused *tokenizer.ClientFault
	// wantIDs says that the caller asks for ids or overlaps, whether the policy looks at them or not.
	wantIDs bool
	// lowered says that the request claims a higher priority than its tenant may; isolated that it has its tenant's salt.
	lowered, isolated bool
	// grant is what the tenant's limits gave it; nil when nothing is limited, or when a reservation has it.
	grant *quota.Grant
	// body is what replicas receive: the client's bytes, or those with the model's name or the
	// prompt's ids put in.
	body []byte

	// upload is the body instead, on routes whose body is passed on as it comes.
	upload *upload

	asked   chooser.Request
	choice  *chooser.Choice
	attempt int
	before  time.Duration // the time that those took
	failed  *failure      // the last attempt's
	begun   bool          // the client was given something

	follower *resume.Follower // of a stream that another replica could write on; nil for most
	seam     *resume.Seam     // from where this attempt writes it on; nil for the whole answer
	resumes  int              // how many times it broke off and went on
	refusals int              // how many replicas would not write it on since
	broke    *failure         // the first break
	dead     []replica.ID     // who broke it off

	scan   sse.Scanner
	status int

	received   time.Time
	chosen     time.Time
	firstToken time.Time
	tokenizing time.Duration
	held       time.Duration
	overhead   time.Duration
}

func (r *Router) newJob(ctx context.Context, call *Call) *job {
	j := &job{call: call, set: r.set.Load(), span: trace.SpanFromContext(ctx), id: newID(), received: call.Received, settings: r.Chooser.Settings()}
	if j.received.IsZero() {
		j.received = time.Now()
	}
	if j.span.IsRecording() {
		j.story = r.newStory(j)
	}
	return j
}

// newID makes a name that no other request of any router has.
func newID() string {
	var b [12]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// usePool fixes which engine model the request is for.
func (j *job) usePool(p *registry.Pool) {
	j.pool, j.adapter = p, p.Adapter
	j.req.Prompt.Model = p.Served
	j.req.Prompt.Adapter = p.Adapter
	switch {
	case j.upload != nil:
		j.upload.rename(p.Served)
	case j.req.Model != "":
		j.body = j.req.WithModel(p.Served)
	default:
		j.body = j.req.Edit()
	}
}

// ask is the question to the chooser for the next attempt.
func (j *job) ask(r *Router) *chooser.Request {
	a := &j.asked
	if a.ID == "" {
		*a = chooser.Request{
			Settings: j.settings, ID: j.id, RequestID: j.call.RequestID,
			Model: j.pool.Model, Served: j.pool.Served, Adapter: j.adapter,
			Session: j.apart(j.req.Session), Tenant: j.call.Tenant,
			Priority: -j.req.Priority, ExpectedOutput: j.req.MaxTokens,
			Unstreamed: !j.req.Stream, Bytes: j.size(),
			Options: j.call.Options, Unread: j.req.Unread(), Samples: j.req.N, Holder: j.holder,
		}
		j.prompt(a)
		if r.Chooser.ReadsText(j.settings, j.pool.Model, &j.call.Options) {
			a.Text = j.apart(j.req.PromptText())
		}
	}
	// The registry may have changed since the last attempt.
	if pool, ok := r.Registry.Snapshot().Pool(j.pool.Model); ok {
		j.pool = pool
	}
	a.Replicas = j.pool.Replicas
	a.Attempt = j.attempt
	return a
}

// sent says that this router sends the request: where it went is a fact.
func (j *job) sent() bool { return !j.outside }

// size is the body's size, as far as it is known.
func (j *job) size() int {
	if j.upload != nil {
		return j.upload.size()
	}
	return len(j.body)
}

// maxPrompt bounds the prompt that a cut body's full size is taken to stand for; no context is that long.
const maxPrompt = 16 << 20

// prompt fills in what is known of the prompt's place in a cache.
func (j *job) prompt(a *chooser.Request) {
	a.Keyless = true
	if j.enc == nil {
		return
	}
	a.PromptTokens, a.Estimated = j.tokens(), !j.enc.Exact
	a.Longest = j.enc.Longest()
	a.Answer = chooser.Answer(j.enc.Answer)
	ns := blockhash.Namespace{Adapter: j.adapter, Salt: j.req.Salt}
	switch {
	case len(j.enc.IDs) > 0:
		a.Keyless = false
		a.Hashes = func(blockSize int) []blockhash.Hash { return j.enc.Hashes(blockSize, ns) }
	case j.req.Prompt.Kind != prompt.KindNone: // no ids: keys made of the text keep conversations together
		a.Hashes = func(blockSize int) []blockhash.Hash {
			return tokenizer.ApproximateHashes(nil, &j.req.Prompt, blockSize, ns)
		}
	}
}

// tokens is the number of the prompt's tokens; of a cut one, about.
func (j *job) tokens() int {
	if have := int64(len(j.call.Body)); j.req.Truncated && have > 0 && j.fullSize > have {
		return int(min(float64(j.enc.Tokens)*float64(j.fullSize)/float64(have), maxPrompt))
	}
	return j.enc.Tokens
}

func (j *job) chose(c *chooser.Choice, at time.Time) {
	j.choice = c
	j.chosen = at
	j.held = c.Decision.Held
	j.overhead = j.chosen.Sub(j.received) - j.tokenizing - j.held - j.before
}

// retry prepares the next attempt on another replica.
func (j *job) retry(f *failure) {
	j.failed = f
	j.asked.Exclude = append(j.asked.Exclude, j.choice.Replica.ID)
	j.choice = nil
	j.attempt++
}

// path is where the engine serves the call.
func (j *job) path() string {
	if j.call.Path != "" {
		return j.call.Path
	}
	return j.call.Route.Path()
}

// method is POST unless the client said otherwise.
func (j *job) method() string {
	if j.call.Method != "" {
		return j.call.Method
	}
	return http.MethodPost
}
