package router

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// Question asks for a replica without sending the request there.
type Question struct {
	// Model names the pool; empty takes the body's, or the only model there is.
	Model string
	// Exactly one of Body, IDs and Text is the prompt; none asks for a replica by load.
	// Body is a client's request, or a prefix of it when Truncated.
	Body      []byte
	Route     openai.Route
	Truncated bool
	// FullSize is the size in bytes of the body that Body is the beginning of; 0 when it is not known.
	FullSize int64
	IDs      []uint32
	Text     string

	Header    map[string][]string
	RequestID string
	// Once says that RequestID names this question of the tenant: while the reservation that was made
	// for it lives, asking again gives the same answer and books nothing.
	Once   bool
	Tenant string
	// ShowOverlap lets the caller see what replicas hold of the prompt, although other tenants may have sent it.
	ShowOverlap bool
	// Steers lets the caller's request id name a connector's addresses.
	Steers   bool
	Adapter  string
	Salt     string
	Session  string
	Priority int
	// ExpectedOutput is in tokens; 0 takes the body's hint or limit.
	ExpectedOutput int
	Options        chooser.Options
	// Explain says that the caller is shown the whole decision.
	Explain bool
	// Reserve books the choice for Lease (zero: the configured one). DryRun neither books nor waits.
	Reserve bool
	Lease   time.Duration
	DryRun  bool
	// ReturnIDs says that the caller reads the ids of the answer's encoding.
	ReturnIDs bool
	// EndOnly says that the caller will report the end and not the first token, FirstToken that it
	// is sure to report that too. With neither it may.
	EndOnly, FirstToken bool
	// Received is when the question was seen.
	Received time.Time
}

// Answer is a choice handed to the caller.
type Answer struct {
	*chooser.Choice
	// Host and Port are the replica's, for callers that open their own connection.
	Host string
	Port int
	// Served is the model's name on the replica, Encoding what is known of the prompt.
	Served   string
	Encoding *tokenizer.Encoding
	Lease    time.Duration
	// Salt is the cache_salt that the body must carry, empty when it stays as it is; Lowered says that the request
	// claims more than its tenant may, and is served at Priority (as engines have it: smaller first).
	Salt     string
	Lowered  bool
	Priority int
	// HideOverlap says that the caller may not see what replicas hold of the prompt.
	HideOverlap bool
	// Duplicate says that an earlier question of this name was given the same answer.
	Duplicate bool
}

// Choose decides, and reserves when asked to, without sending anything. The caller reports the
// rest through the lifecycle methods of the chooser. An error is an *apierror.Error.
func (r *Router) Choose(ctx context.Context, q *Question) (*Answer, error) {
	if q.Explain && !r.showsOverlap(&Call{Tenant: q.Tenant, ShowOverlap: q.ShowOverlap}) {
		return nil, apierror.New(apierror.PermissionDenied, "a decision reveals what other tenants have sent: this key may not read it (router.show_overlap)", nil, apierror.WithParam("explain"))
	}
	if q.Once && q.Reserve && !q.DryRun {
		return r.chooseOnce(ctx, q)
	}
	return r.decide(ctx, q)
}

func (r *Router) decide(ctx context.Context, q *Question) (_ *Answer, err error) {
	rq := r.newQuestion(ctx, q)
	d := &delivery{} // stays empty: the caller sends the request
	defer func() {
		public := apierror.From(err)
		r.settleLimits(rq, d, err)
		rq.enc.Release()
		if !q.DryRun {
			r.countUnserved(d, public)
		}
		rq.leaveStory(d, public)
	}()
	if err := r.question(ctx, rq, q); err != nil {
		return nil, err
	}
	if err := r.tokenize(ctx, rq); err != nil {
		return nil, err
	}
	t := r.newTries(rq)
	ask := &t.ask
	ask.ExpectedOutput = cmp.Or(q.ExpectedOutput, ask.ExpectedOutput)
	if !q.DryRun {
		if err := r.book(rq, cmp.Or(ask.OutputLimit, ask.ExpectedOutput), q.Reserve); err != nil {
			return nil, err
		}
	}
	ask.Explain = q.Explain
	switch {
	case q.DryRun:
		ask.Booking = chooser.DryRun
	case !q.Reserve:
		ask.Booking = chooser.Unbooked
	}
	// The first token of an answer in one piece is not seen, unless the caller says that it will be.
	ask.Unstreamed = q.EndOnly || !q.FirstToken && len(q.Body) > 0 && !rq.parsed.Truncated && !rq.parsed.Stream
	ask.Reports = q.FirstToken
	if q.Reserve {
		if ask.Lease = q.Lease; ask.Lease <= 0 {
			ask.Lease = r.Lease
		}
	}
	chosen := new(attempt)
	if err := r.choose(ctx, rq, t, chosen); err != nil {
		return nil, err
	}
	choice := chosen.choice
	if choice.Decision.TooLong {
		choice.Release(chooser.Result{End: decision.EndRejected, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		return nil, tooLong(rq, choice, ask.Longest)
	}
	if q.Reserve && !q.Once && ctx.Err() != nil { // its caller has left; a question with a name may be asked again
		choice.Release(chooser.Result{End: decision.EndCanceled, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		return nil, apierror.From(cause(ctx, ctx.Err()))
	}
	if !q.DryRun {
		r.learnRouted(ctx, rq, t, chosen)
	}
	host, port := hostPort(choice.Replica.URL)
	r.metrics.decided(rq, chosen)
	a := &Answer{
		Choice: choice, Host: host, Port: port, Served: rq.pool.Served, Encoding: rq.enc, Lease: ask.Lease,
		Lowered: rq.lowered, Priority: rq.parsed.Priority, HideOverlap: !r.showsOverlap(rq.call),
	}
	if rq.isolated {
		a.Salt = rq.parsed.Salt
	}
	if q.Reserve && !q.DryRun {
		r.reserved(rq, choice)
	}
	return a, nil
}

// tooLong is what an engine would say of a prompt of so many tokens.
func tooLong(rq *request, c *chooser.Choice, tokens int) error {
	return apierror.New(apierror.InvalidBody, fmt.Sprintf("This model's maximum context length is %d tokens. However, the prompt has %d tokens. Please reduce its length.",
		contextOf(c.Replica, rq.pool.Served), tokens), nil, apierror.WithParam("prompt"))
}

// newQuestion makes the request of a question.
func (r *Router) newQuestion(ctx context.Context, q *Question) *request {
	rq := r.newRequest(ctx, &Call{
		Route: q.Route, Header: q.Header, Body: q.Body, RequestID: q.RequestID,
		Tenant: q.Tenant, ShowOverlap: q.ShowOverlap, Steers: true, Options: q.Options, Received: q.Received,
	})
	rq.question = q
	return rq
}

// question reads a question. Its caller must call settleLimits.
func (r *Router) question(ctx context.Context, rq *request, q *Question) error {
	if err := r.enter(rq); err != nil {
		return err
	}
	if err := r.readQuestion(rq, q); err != nil {
		return err
	}
	if q.Model != "" {
		rq.parsed.Model = q.Model
	}
	if q.Session != "" {
		rq.parsed.Session, rq.parsed.SessionSource = q.Session, "session_id"
	}
	if q.Salt != "" {
		rq.parsed.Salt, rq.parsed.Prompt.Salt = q.Salt, q.Salt
	}
	if q.Priority != 0 {
		rq.parsed.Priority = -q.Priority
	}
	r.capPriority(rq)
	if err := r.isolate(rq); err != nil {
		return err
	}
	if err := r.findAdapter(rq, q.Adapter); err != nil {
		if rq.parsed.Truncated && rq.parsed.Model == "" && apierror.From(err).Reason == apierror.InvalidBody {
			return errCutBeforeModel() // the caller's body may well name one
		}
		return err
	}
	if err := r.denyOld(rq); err != nil {
		return err
	}
	return r.place(ctx, rq)
}

// findAdapter finds the pool of a question: the adapter's where one is named, which must be one of the
// model's, if that is named too.
func (r *Router) findAdapter(rq *request, adapter string) error {
	if adapter == "" {
		return r.findPool(rq)
	}
	snapshot := r.Registry.Snapshot()
	pool, ok := snapshot.Pool(adapter)
	if ok && rq.parsed.Model != "" && rq.parsed.Model != adapter {
		if err := r.findPool(rq); err != nil {
			return err
		}
		ok = pool == rq.pool || pool.AdapterOf(rq.pool)
	}
	if !ok || pool.Adapter == "" {
		return apierror.New(apierror.ModelNotFound, "The model has no adapter `"+clip(adapter, 128)+"`.", nil, apierror.WithParam("adapter"))
	}
	rq.usePool(pool)
	return nil
}

// errCutBeforeModel rejects a cut body that lacks its model where the model is needed.
func errCutBeforeModel() *apierror.Error {
	return apierror.New(apierror.BodyTooLarge, "the body was cut off before its model, and the router does not serve exactly one: raise the proxy's limit for bodies", nil, apierror.WithParam("model"))
}

// readQuestion finds the prompt in any of its forms.
func (r *Router) readQuestion(rq *request, q *Question) error {
	switch {
	case len(q.Body) > 0:
		if err := r.read(rq); err != nil {
			return err
		}
		rq.call.Route = rq.parsed.Route
	default:
		rq.call.Route = openai.RouteCompletions
		rq.parsed = &openai.Request{Route: openai.RouteCompletions, N: 1, Stream: true}
		p := &rq.parsed.Prompt
		p.API = prompt.APICompletions
		switch {
		case len(q.IDs) > 0:
			p.Kind, p.IDs = prompt.KindIDs, q.IDs
		case q.Text != "":
			p.Kind, p.Text = prompt.KindText, q.Text
		}
		rq.parsed.Session, rq.parsed.SessionSource = openai.SessionFrom(q.Header, rq.set.sessions)
		rq.parsed.SessionReturn, rq.parsed.SessionEnds = openai.SessionReturn(q.Header)
	}
	if !rq.call.Route.Generates() {
		return apierror.New(apierror.NotSupported, "the body is of a kind whose place in a cache does not matter", nil)
	}
	return nil
}

// Encode gives the token ids of a question's prompt, whole, and how they were found. It chooses
// nothing.
func (r *Router) Encode(ctx context.Context, q *Question) (_ *Answer, err error) {
	rq := r.newQuestion(ctx, q)
	rq.onlyIDs = true
	d := &delivery{}
	defer func() {
		r.settleLimits(rq, d, err)
		rq.enc.Release()
		rq.leaveStory(d, apierror.From(err))
	}()
	if err := r.question(ctx, rq, q); err != nil {
		return nil, err
	}
	if err := r.tokenize(ctx, rq); err != nil {
		return nil, err
	}
	if rq.enc.Reason == tokenizer.ReasonNoPrompt {
		return nil, apierror.New(apierror.InvalidBody, "there is no prompt to tokenize", nil)
	}
	if len(rq.enc.IDs) == 0 && rq.enc.Source == tokenizer.SourceNone {
		return nil, apierror.New(apierror.UpstreamError, "no replica could tokenize the prompt: "+rq.enc.Reason, nil, apierror.WithRetryAfter(time.Second))
	}
	return &Answer{Served: rq.pool.Served, Encoding: rq.enc}, nil
}
