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
	Caller
	Input
	Terms
	// Model names the pool; empty takes the body's, or the only model there is.
	Model string

	Header    map[string][]string
	RequestID string
	Adapter   string
	Salt      string
	Session   string
	Priority  int
	// ExpectedOutput is in tokens; 0 takes the body's hint or limit.
	ExpectedOutput int
	Options        chooser.Options
	// Explain says that the caller is shown the whole decision.
	Explain bool
	// ReturnIDs says that the caller reads the ids of the answer's encoding.
	ReturnIDs bool
	// Received is when the question was seen.
	Received time.Time
}

// Input is the prompt of a question: one of Body, IDs and Text. Without any, a replica is chosen by load.
type Input struct {
	// Body is a client's request to Route, or a prefix of it when Truncated.
	Body      []byte
	Route     openai.Route
	Truncated bool
	// FullSize is the size in bytes of the body that Body is the beginning of; 0 when it is not known.
	FullSize int64
	IDs      []uint32
	Text     string
}

// Terms are what is booked for a question, and what its caller reports.
type Terms struct {
	Booking Booking
	// Lease is the life of the reservation; zero takes the configured one.
	Lease   time.Duration
	Reports Reports
}

// Booking is what a choice books.
type Booking uint8

const (
	// BookNothing makes a choice that waits for its turn and books nothing.
	BookNothing Booking = iota
	// Reserve books the choice.
	Reserve
	// ReserveOnce books the choice under the tenant's RequestID: while the reservation lives, the same question
	// gets the same answer and books nothing.
	ReserveOnce
	// DryRun neither books nor waits.
	DryRun
)

// Reserves reports whether the choice becomes a reservation.
func (b Booking) Reserves() bool { return b == Reserve || b == ReserveOnce }

// Reports is what the caller reports of a request.
type Reports uint8

const (
	// ReportsAny may include the first token.
	ReportsAny Reports = iota
	// ReportsEnd has the end and not the first token.
	ReportsEnd
	// ReportsFirstToken is sure to include the first token.
	ReportsFirstToken
)

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

// questions answers callers that send the request themselves.
type questions struct {
	intake  *intake
	picker  *picker
	limits  *limits
	ends    *ends
	metrics *metrics
	chooser *chooser.Chooser
	// lease is the life of a reservation that names none.
	lease  time.Duration
	claims claims
}

// Choose decides, and reserves when asked to, without sending anything. The caller reports the
// rest through the lifecycle methods of the chooser. An error is an *apierror.Error.
func (qs *questions) Choose(ctx context.Context, q *Question) (*Answer, error) {
	if q.Explain && !qs.intake.set.Load().showsOverlap(q.Caller) {
		return nil, apierror.New(apierror.PermissionDenied, "a decision reveals what other tenants have sent: this key may not read it (router.show_overlap)", nil, apierror.WithParam("explain"))
	}
	if q.Booking == ReserveOnce {
		return qs.chooseOnce(ctx, q)
	}
	return qs.account(ctx, qs.newQuestion(ctx, q), qs.decide)
}

// account has answer answer a question, and accounts for it, however it ends.
func (qs *questions) account(ctx context.Context, rq *request, answer func(context.Context, *request) (*Answer, error)) (_ *Answer, err error) {
	d := &delivery{} // stays empty: the caller sends the request
	defer func() {
		public := apierror.From(err)
		qs.limits.settle(rq, d, err)
		rq.enc.Release()
		if !rq.onlyIDs && rq.question.Booking != DryRun {
			qs.ends.countUnserved(d, public)
		}
		rq.story.leave(rq, d, public)
	}()
	if err := qs.question(ctx, rq, rq.question); err != nil {
		return nil, err
	}
	if err := qs.intake.tokenize(ctx, rq); err != nil {
		return nil, err
	}
	return answer(ctx, rq)
}

// decide chooses, and books what the question asks for.
func (qs *questions) decide(ctx context.Context, rq *request) (*Answer, error) {
	q, t := rq.question, newTries(rq)
	ask := &t.ask
	ask.ExpectedOutput = cmp.Or(q.ExpectedOutput, ask.ExpectedOutput)
	if q.Booking != DryRun {
		if err := qs.limits.book(rq, cmp.Or(ask.OutputLimit, ask.ExpectedOutput), q.Booking.Reserves()); err != nil {
			return nil, err
		}
	}
	ask.Explain = q.Explain
	switch q.Booking {
	case DryRun:
		ask.Booking = chooser.DryRun
	case BookNothing:
		ask.Booking = chooser.Unbooked
	case Reserve, ReserveOnce:
	}
	// The first token of an answer in one piece is not seen, unless the caller says that it will be.
	ask.Unstreamed = q.Reports == ReportsEnd || q.Reports == ReportsAny && len(q.Body) > 0 && !rq.parsed.Truncated && !rq.parsed.Stream
	ask.Reports = q.Reports == ReportsFirstToken
	if q.Booking.Reserves() {
		if ask.Lease = q.Lease; ask.Lease <= 0 {
			ask.Lease = qs.lease
		}
	}
	chosen := new(attempt)
	if err := qs.picker.choose(ctx, rq, t, chosen); err != nil {
		return nil, err
	}
	choice := chosen.choice
	if choice.Decision.TooLong {
		choice.Release(chooser.Result{End: decision.EndRejected, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		return nil, tooLong(rq, choice, ask.Longest)
	}
	if q.Booking == Reserve && ctx.Err() != nil { // its caller has left; a question with a name may be asked again
		choice.Release(chooser.Result{End: decision.EndCanceled, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		return nil, apierror.From(cause(ctx, ctx.Err()))
	}
	if q.Booking != DryRun {
		qs.picker.learnRouted(ctx, rq, t, chosen)
	}
	host, port := hostPort(choice.Replica.URL)
	qs.metrics.decided(rq, chosen)
	a := &Answer{
		Choice: choice, Host: host, Port: port, Served: rq.pool.Served, Encoding: rq.enc, Lease: ask.Lease,
		Lowered: rq.lowered, Priority: rq.parsed.Priority, HideOverlap: !rq.set.showsOverlap(q.Caller),
	}
	if rq.isolated {
		a.Salt = rq.parsed.Salt
	}
	if q.Booking.Reserves() {
		qs.limits.reserved(rq, choice)
	}
	return a, nil
}

// tooLong is what an engine would say of a prompt of so many tokens.
func tooLong(rq *request, c *chooser.Choice, tokens int) error {
	return apierror.New(apierror.InvalidBody, fmt.Sprintf("This model's maximum context length is %d tokens. However, the prompt has %d tokens. Please reduce its length.",
		contextOf(c.Replica, rq.pool.Served), tokens), nil, apierror.WithParam("prompt"))
}

// newQuestion makes the request of a question.
func (qs *questions) newQuestion(ctx context.Context, q *Question) *request {
	rq := qs.intake.newRequest(ctx, &Call{
		Route: q.Route, Header: q.Header, Body: q.Body, RequestID: q.RequestID,
		Caller: Caller{Tenant: q.Tenant, ShowOverlap: q.ShowOverlap, Steers: true}, Options: q.Options, Received: q.Received,
	})
	rq.question = q
	return rq
}

// question reads a question. Its caller must call limits.settle.
func (qs *questions) question(ctx context.Context, rq *request, q *Question) error {
	if err := qs.limits.enter(rq); err != nil {
		return err
	}
	if err := qs.readQuestion(rq, q); err != nil {
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
	qs.limits.capPriority(rq)
	if err := rq.set.isolation.apply(rq); err != nil {
		return err
	}
	if err := qs.intake.findAdapter(ctx, rq, q.Adapter); err != nil {
		if rq.parsed.Truncated && rq.parsed.Model == "" && apierror.From(err).Reason == apierror.InvalidBody {
			return errCutBeforeModel() // the caller's body may well name one
		}
		return err
	}
	if err := rq.set.isolation.denyOld(rq); err != nil {
		return err
	}
	return qs.intake.place(ctx, rq)
}

// errCutBeforeModel rejects a cut body that lacks its model where the model is needed.
func errCutBeforeModel() *apierror.Error {
	return apierror.New(apierror.BodyTooLarge, "the body was cut off before its model, and the router does not serve exactly one: raise the proxy's limit for bodies", nil, apierror.WithParam("model"))
}

// readQuestion finds the prompt in any of its forms.
func (qs *questions) readQuestion(rq *request, q *Question) error {
	switch {
	case len(q.Body) > 0:
		if err := qs.intake.read(rq); err != nil {
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
func (qs *questions) Encode(ctx context.Context, q *Question) (*Answer, error) {
	rq := qs.newQuestion(ctx, q)
	rq.onlyIDs = true
	return qs.account(ctx, rq, ids)
}

// ids answers with the token ids of the prompt.
func ids(_ context.Context, rq *request) (*Answer, error) {
	if rq.enc.Reason == tokenizer.ReasonNoPrompt {
		return nil, apierror.New(apierror.InvalidBody, "there is no prompt to tokenize", nil)
	}
	if len(rq.enc.IDs) == 0 && rq.enc.Source == tokenizer.SourceNone {
		return nil, apierror.New(apierror.UpstreamError, "no replica could tokenize the prompt: "+rq.enc.Reason, nil, apierror.WithRetryAfter(time.Second))
	}
	return &Answer{Served: rq.pool.Served, Encoding: rq.enc}, nil
}
