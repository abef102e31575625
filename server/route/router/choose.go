package router

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// advisor answers callers that send the request themselves.
type advisor struct {
	intake   *intake.Intake
	attempts *attempt.Dispatcher
	ends     *requestEnds
	metrics  *metrics
	chooser  *chooser.Chooser
	// lease is the life of a reservation that names none.
	lease  time.Duration
	claims claims
}

// Choose decides, and reserves when asked to, without sending anything. The caller reports the
// rest through the lifecycle methods of the chooser. An error is an *apierror.Error.
func (qs *advisor) Choose(ctx context.Context, q *intake.Question) (*Answer, error) {
	if q.Explain && !qs.intake.ShowsOverlap(q.Caller) {
		return nil, apierror.New(apierror.PermissionDenied, "a decision reveals what other tenants have sent: this key may not read it (router.show_overlap)", nil, apierror.WithParam("explain"))
	}
	if q.Booking == intake.ReserveOnce {
		return qs.chooseOnce(ctx, q)
	}
	return qs.account(ctx, qs.intake.NewQuestion(ctx, q), qs.decide)
}

// account has answer answer a question, and accounts for it, however it ends.
func (qs *advisor) account(ctx context.Context, rq *intake.Request, answer func(context.Context, *intake.Request) (*Answer, error)) (_ *Answer, err error) {
	d := &attempt.Delivery{} // stays empty: the caller sends the request
	defer func() {
		public := apierror.From(err)
		settle(qs.intake.Limits, rq, d, err)
		rq.Enc.Release()
		if !rq.OnlyIDs && rq.Question.Booking != intake.DryRun {
			qs.ends.countUnserved(d, public)
		}
		leaveStory(rq, d, public)
	}()
	if err := qs.intake.Ask(ctx, rq); err != nil {
		return nil, err
	}
	return answer(ctx, rq)
}

// decide chooses, and books what the question asks for.
func (qs *advisor) decide(ctx context.Context, rq *intake.Request) (*Answer, error) {
	q, t := rq.Question, attempt.NewTries(rq)
	ask := &t.Ask
	ask.ExpectedOutput = cmp.Or(q.ExpectedOutput, ask.ExpectedOutput)
	if q.Booking != intake.DryRun {
		if err := qs.intake.Limits.Book(rq, cmp.Or(ask.OutputLimit, ask.ExpectedOutput), q.Booking.Reserves()); err != nil {
			return nil, err
		}
	}
	ask.Explain = q.Explain
	switch q.Booking {
	case intake.DryRun:
		ask.Booking = chooser.DryRun
	case intake.BookNothing:
		ask.Booking = chooser.Unbooked
	case intake.Reserve, intake.ReserveOnce:
	}
	// The first token of an answer in one piece is not seen, unless the caller says that it will be.
	ask.Unstreamed = q.Reports == intake.ReportsEnd || q.Reports == intake.ReportsAny && len(q.Body) > 0 && !rq.Parsed.Truncated && !rq.Parsed.Stream
	ask.Reports = q.Reports == intake.ReportsFirstToken
	if q.Booking.Reserves() {
		if ask.Lease = q.Lease; ask.Lease <= 0 {
			ask.Lease = qs.lease
		}
	}
	chosen := new(attempt.Attempt)
	if err := qs.attempts.Picker.Choose(ctx, rq, t, chosen); err != nil {
		return nil, err
	}
	choice := chosen.Choice
	if choice.Decision.TooLong {
		choice.Release(chooser.ResultOf(decision.EndRejected))
		return nil, tooLong(rq, choice, ask.Longest)
	}
	if q.Booking == intake.Reserve && ctx.Err() != nil { // its caller has left; a question with a name may be asked again
		choice.Release(chooser.ResultOf(decision.EndCanceled))
		return nil, apierror.From(intake.Cause(ctx, ctx.Err()))
	}
	if q.Booking != intake.DryRun {
		qs.attempts.Picker.LearnRouted(ctx, rq, t, chosen)
	}
	host, port := replica.HostPort(choice.Replica.URL)
	qs.metrics.decided(rq, chosen)
	a := &Answer{
		Choice: choice, Host: host, Port: port, Served: rq.Pool.Served, Encoding: rq.Enc, Lease: ask.Lease,
		Lowered: rq.Lowered, Priority: rq.Parsed.Priority, HideOverlap: !rq.Settings.ShowsOverlap(q.Caller),
	}
	if rq.Isolated {
		a.Salt = rq.Parsed.Salt
	}
	if q.Booking.Reserves() {
		reserved(qs.intake.Limits, rq, choice)
	}
	return a, nil
}

// tooLong is what an engine would say of a prompt of so many tokens.
func tooLong(rq *intake.Request, c *chooser.Choice, tokens int) error {
	return apierror.New(apierror.InvalidBody, fmt.Sprintf("This model's maximum context length is %d tokens. However, the prompt has %d tokens. Please reduce its length.",
		attempt.ContextOf(c.Replica, rq.Pool.Served), tokens), nil, apierror.WithParam("prompt"))
}

// Encode gives the token ids of a question's prompt, whole, and how they were found. It chooses
// nothing.
func (qs *advisor) Encode(ctx context.Context, q *intake.Question) (*Answer, error) {
	rq := qs.intake.NewQuestion(ctx, q)
	rq.OnlyIDs = true
	return qs.account(ctx, rq, promptIDs)
}

// promptIDs answers with the token ids of the prompt.
func promptIDs(_ context.Context, rq *intake.Request) (*Answer, error) {
	if rq.Enc.Reason == tokenizer.ReasonNoPrompt {
		return nil, apierror.New(apierror.InvalidBody, "there is no prompt to tokenize", nil)
	}
	if len(rq.Enc.IDs) == 0 && rq.Enc.Source == tokenizer.SourceNone {
		return nil, apierror.New(apierror.UpstreamError, "no replica could tokenize the prompt: "+rq.Enc.Reason, nil, apierror.WithRetryAfter(time.Second))
	}
	return &Answer{Served: rq.Pool.Served, Encoding: rq.Enc}, nil
}

// chooseOnce answers a question with a name: the first time by a choice, and as long as its
// reservation lives by the same, with its lease renewed.
func (qs *advisor) chooseOnce(ctx context.Context, q *intake.Question) (*Answer, error) {
	name, digest := claimName{q.Tenant, q.RequestID}, digestOf(q, qs.claims.seed)
	for {
		c, mine := qs.claims.take(name, digest)
		if mine {
			return qs.claim(ctx, q, name, c)
		}
		if c.digest != digest {
			return nil, apierror.New(apierror.Conflict, "another request with this request_id is in progress", nil, apierror.WithParam("request_id"))
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return nil, apierror.From(intake.Cause(ctx, ctx.Err()))
		}
		if c.answer == nil {
			continue // the first one failed: this may be the first now
		}
		if d := c.answer.Decision; qs.chooser.Renew(load.Key{Tenant: d.Tenant, ID: d.ID, Attempt: uint32(d.Attempt)}) == load.Applied {
			again := *c.answer
			again.Duplicate = true
			return &again, nil
		}
		// It has ended, or its replica is gone.
		c.answer.Release(chooser.ResultOf(decision.EndRemoved))
		qs.claims.drop(name, c)
	}
}

// claim makes the choice of a claim.
func (qs *advisor) claim(ctx context.Context, q *intake.Question, name claimName, c *claim) (a *Answer, err error) {
	defer func() {
		if c.answer == nil {
			qs.claims.drop(name, c)
		}
		close(c.done)
	}()
	if a, err = qs.account(ctx, qs.intake.NewQuestion(ctx, q), qs.decide); err != nil {
		return nil, err
	}
	c.answer = a
	a.OnEnd(func(chooser.Result) { qs.claims.drop(name, c) })
	return a, nil
}

// Claimed reports whether a question of this name has a live reservation, or is getting one.
func (qs *advisor) Claimed(tenant, name string) bool {
	qs.claims.mu.Lock()
	defer qs.claims.mu.Unlock()
	return qs.claims.names[claimName{tenant, name}] != nil
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
