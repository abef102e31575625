package router

import (
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

// Question asks for a replica without having the request sent there.
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
	// ShowOverlap lets the caller see what replicas hold of the prompt, whoever sent that.
	ShowOverlap bool
	Adapter     string
	Salt        string
	Session     string
	Priority    int
	// ExpectedOutput is in tokens; 0 takes the body's limit.
	ExpectedOutput int
	Options        chooser.Options
	// Explain says that the caller is shown the whole decision.
	Explain bool
	// Reserve books the choice for Lease (zero: the configured one). DryRun neither books nor waits.
	Reserve bool
	Lease   time.Duration
	DryRun  bool
	// EndOnly says that the caller will report the end and not the first token, FirstToken that it
	// is sure to report that too. With neither it may.
	EndOnly, FirstToken bool
	// Received is when the question was seen.
	Received time.Time
}

// Answer is a choice handed to the caller.
type Answer struct {
	*chooser.Choice
	// Host and Port are the replica's, for callers who open their own connection.
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
	if q.Explain && !r.tellsOverlap(&Call{Tenant: q.Tenant, ShowOverlap: q.ShowOverlap}) {
		return nil, apierror.New(apierror.PermissionDenied, "a decision reveals what other tenants have sent: this key may not read it (router.show_overlap)", nil, apierror.WithParam("explain"))
	}
	if q.Once && q.Reserve && !q.DryRun {
		return r.chooseOnce(ctx, q)
	}
	return r.decide(ctx, q)
}

func (r *Router) decide(ctx context.Context, q *Question) (_ *Answer, err error) {
	j := r.newQuestion(ctx, q)
	defer func() {
		r.settleLimits(j, err)
		j.tell(apierror.From(err))
	}()
	if err := r.question(ctx, j, q); err != nil {
		return nil, err
	}
	j.wantIDs, j.choosing = q.DryRun, true
	if err := r.tokenize(ctx, j); err != nil {
		return nil, err
	}
	ask := j.ask(r)
	if ask.ExpectedOutput == 0 {
		ask.ExpectedOutput = q.ExpectedOutput
	}
	if !q.DryRun {
		if err := r.book(j, ask.ExpectedOutput, q.Reserve); err != nil {
			return nil, err
		}
	}
	ask.DryRun, ask.Unbooked = q.DryRun, !q.DryRun && !q.Reserve
	// Nobody sees the first token of an answer that comes whole.
	ask.Unstreamed = q.EndOnly || len(q.Body) > 0 && !j.req.Truncated && !j.req.Stream
	ask.Reports = q.FirstToken && !ask.Unstreamed
	if q.Reserve {
		if ask.Lease = q.Lease; ask.Lease <= 0 {
			ask.Lease = r.Lease
		}
	}
	if err := r.choose(ctx, j, ask); err != nil {
		return nil, err
	}
	choice := j.choice
	if choice.Decision.TooLong {
		choice.Release(chooser.Result{End: decision.EndRejected, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		return nil, tooLong(j)
	}
	if !q.DryRun {
		r.routed(ctx, j)
	}
	host, port := hostPort(choice.Replica.URL)
	r.metrics.decided(j)
	a := &Answer{
		Choice: choice, Host: host, Port: port, Served: j.pool.Served, Encoding: j.enc, Lease: ask.Lease,
		Lowered: j.lowered, Priority: j.req.Priority, HideOverlap: !r.tellsOverlap(j.call),
	}
	if j.isolated {
		a.Salt = j.req.Salt
	}
	if q.Reserve && !q.DryRun {
		r.reserved(j, choice)
	}
	return a, nil
}

// tooLong is what an engine would say of the prompt.
func tooLong(j *job) error {
	return apierror.New(apierror.InvalidBody, fmt.Sprintf("This model's maximum context length is %d tokens. However, the prompt has %d tokens. Please reduce its length.",
		contextOf(j.choice.Replica, j.pool.Served), j.asked.Longest), nil, apierror.WithParam("prompt"))
}

// newQuestion makes a job for a question.
func (r *Router) newQuestion(ctx context.Context, q *Question) *job {
	j := r.newJob(ctx, &Call{
		Route: q.Route, Header: q.Header, Body: q.Body, RequestID: q.RequestID,
		Tenant: q.Tenant, ShowOverlap: q.ShowOverlap, Options: q.Options, Received: q.Received,
	})
	j.outside = true
	return j
}

// question reads a question. Its caller has settleLimits called.
func (r *Router) question(ctx context.Context, j *job, q *Question) error {
	if err := r.enter(j); err != nil {
		return err
	}
	if err := r.readQuestion(ctx, j, q); err != nil {
		return err
	}
	if q.Model != "" {
		j.req.Model = q.Model
	}
	if q.Session != "" {
		j.req.Session = q.Session
	}
	if q.Salt != "" {
		j.req.Salt, j.req.Prompt.Salt = q.Salt, q.Salt
	}
	if q.Priority != 0 {
		j.req.Priority = -q.Priority
	}
	r.capPriority(j)
	if err := r.isolate(j); err != nil {
		return err
	}
	if err := r.findAdapter(j, q.Adapter); err != nil {
		if j.req.Truncated && j.req.Model == "" && apierror.From(err).Reason == apierror.InvalidBody {
			return errCutBeforeModel() // the caller's body may well name one
		}
		return err
	}
	if err := r.denyOld(j); err != nil {
		return err
	}
	return r.place(ctx, j)
}

// findAdapter finds the pool of a question: the adapter's where one is named, which must be one of the
// model's, if that is named too.
func (r *Router) findAdapter(j *job, adapter string) error {
	if adapter == "" {
		return r.findPool(j)
	}
	snapshot := r.Registry.Snapshot()
	pool, ok := snapshot.Pool(adapter)
	if ok && j.req.Model != "" && j.req.Model != adapter {
		if err := r.findPool(j); err != nil {
			return err
		}
		ok = pool == j.pool || pool.AdapterOf(j.pool)
	}
	if !ok || pool.Adapter == "" {
		return apierror.New(apierror.ModelNotFound, "The model has no adapter `"+clip(adapter, 128)+"`.", nil, apierror.WithParam("adapter"))
	}
	j.usePool(pool)
	return nil
}

// errCutBeforeModel is what a cut body meets whose model is needed and not in it.
func errCutBeforeModel() *apierror.Error {
	return apierror.New(apierror.BodyTooLarge, "the body was cut off before its model, and the router does not serve exactly one: raise the proxy's limit for bodies", nil, apierror.WithParam("model"))
}

// readQuestion finds the prompt in whatever form it came.
func (r *Router) readQuestion(ctx context.Context, j *job, q *Question) error {
	switch {
	case len(q.Body) > 0:
		j.truncated, j.fullSize = q.Truncated, q.FullSize
		if err := r.read(ctx, j); err != nil {
			return err
		}
		j.call.Route = j.req.Route
	default:
		j.call.Route = openai.RouteCompletions
		j.req = &openai.Request{Route: openai.RouteCompletions, N: 1, Stream: true}
		p := &j.req.Prompt
		p.API = prompt.APICompletions
		switch {
		case len(q.IDs) > 0:
			p.Kind, p.IDs = prompt.KindIDs, q.IDs
		case q.Text != "":
			p.Kind, p.Text = prompt.KindText, q.Text
		}
		j.req.Session = openai.SessionFrom(q.Header, j.set.SessionHeader)
	}
	if !j.call.Route.Generates() {
		return apierror.New(apierror.NotSupported, "the body is of a kind whose place in a cache does not matter", nil)
	}
	return nil
}

// Encode gives the token ids of a question's prompt, whole, and how they were found. It chooses
// nothing.
func (r *Router) Encode(ctx context.Context, q *Question) (_ *Answer, err error) {
	j := r.newQuestion(ctx, q)
	defer func() {
		r.settleLimits(j, err)
		j.tell(apierror.From(err))
	}()
	if err := r.question(ctx, j, q); err != nil {
		return nil, err
	}
	j.needFull, j.wantIDs = true, true
	if err := r.tokenize(ctx, j); err != nil {
		return nil, err
	}
	if j.enc.Reason == tokenizer.ReasonNoPrompt {
		return nil, apierror.New(apierror.InvalidBody, "there is no prompt to tokenize", nil)
	}
	if len(j.enc.IDs) == 0 && j.enc.Source == tokenizer.SourceNone {
		return nil, apierror.New(apierror.UpstreamError, "no replica could tokenize the prompt: "+j.enc.Reason, nil, apierror.WithRetryAfter(time.Second))
	}
	return &Answer{Served: j.pool.Served, Encoding: j.enc}, nil
}
