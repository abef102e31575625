package answer

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Answers gives clients the answers of attempts.
type Answers struct {
	attempts  *attempt.Dispatcher
	limits    *intake.Accounts
	responses *intake.Responses
	resumer   *resumer
	Blanks    blanks
	// interrupted counts the streams that are lost.
	interrupted *instruments.Keyed[interruption]
}

// New makes answers.
func New(in *intake.Intake, attempts *attempt.Dispatcher, s scope.Scope) *Answers {
	m, results := newMetrics(s.Meters()), attempts.Resumes()
	results.Know(resumeResults()...)
	return &Answers{
		attempts: attempts, limits: in.Limits, responses: in.Responses, Blanks: blanks{empties: &m.Empties, limits: in.Limits}, interrupted: &m.Interrupted,
		resumer: &resumer{attempts: attempts, retries: attempts.Retries, tokens: attempts.Tokens, results: results, interrupted: &m.Interrupted, log: s.Log()},
	}
}

// Deliver forwards the answer of the attempt under way, and ends the attempt. It returns nil when the client has the whole answer.
func (an *Answers) Deliver(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery) (f *attempt.Failure) {
	end := decision.EndFailed // of an attempt that a panic ends
	defer func() { an.attempts.End(ctx, rq, d, f, end) }()
	err := an.forward(ctx, rq, t, d)
	if err == nil {
		outcome := retry.Broken // only its end was missing, which the router wrote
		if end = decision.EndCompleted; !d.Attempt.IsBroken() {
			if outcome, end = d.Outcome(); outcome == retry.EngineError {
				an.lost(rq, d.Attempt, causeError, false)
			}
		}
		an.attempts.Blame.Settle(rq, d, d.Attempt, outcome)
		an.Blanks.compared(t, d)
		return nil
	}
	if f = an.attempts.Broke(ctx, d, err); d.HasBegun() && f.Outcome == retry.Broken {
		_, counted := errors.AsType[*attempt.Failure](err)
		an.lost(rq, d.Attempt, causeOf(d.Attempt, f), counted)
	}
	if d.Attempt == nil || d.Attempt.HasEnded() {
		return f
	}
	d.Attempt.EndedEarly()
	settled := f.Outcome
	if errors.Is(err, attempt.ErrTransfer) || errors.Is(err, resume.ErrNotTranslated) || errors.Is(err, resume.ErrNotWhole) || d.Attempt.IsOrphaned() { // whose fault that is, is not known, or not this replica's
		settled = retry.Canceled
	}
	an.attempts.Blame.Settle(rq, d, d.Attempt, settled)
	if end = attempt.EndOf(f.Outcome); d.HasBegun() && f.Outcome == retry.Broken {
		end = decision.EndFailed
	}
	if an.attempts.Stopper.Stops(ctx, rq, t, d, f) {
		f.Poisoned, end = true, decision.EndPoisoned
	}
	return f
}

// lost counts a stream that ended early for its client, too. Its result is counted where another replica was looked for; elsewhere it was
// not followed.
func (an *Answers) lost(rq *intake.Request, a *attempt.Attempt, cause string, counted bool) {
	if !rq.Parsed.Stream {
		return
	}
	var follower *resume.Follower
	if a != nil {
		follower = a.Follower()
	}
	an.interrupted.Add(interruption{kindOf(rq, follower), cause, false})
	if !counted && rq.Settings.ResumeStreams > 0 {
		an.resumer.results.Add(resultIneligible)
	}
}

// forward gives the client the answer, piece by piece as it comes. The Sink is begun with the first
// piece, not with the head, so that a replica that dies between the two costs nothing.
func (an *Answers) forward(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery) error {
	a, first := d.Attempt, newReply(rq, d)
	streamed := first.streamed && a.Whole() == nil
	d.Scan.Reset(rq.Parsed.Prompt.API, streamed)
	expect(rq, t, d, streamed)
	from := an.resumer.source(ctx, rq, t, d, first)
	defer from.close()
	// An object is of no use before its end: kept until then, one that ends early costs nothing.
	keeps := a.Response.ContentLength <= attempt.MaxKept && attempt.MediaType(a.Response.Header) == "application/json"
	for {
		piece, err := from.next(ctx)
		if intake.IsEnd(err) {
			break
		}
		if err != nil {
			return err
		}
		if keeps {
			if piece, keeps = a.Keep(piece); keeps {
				continue
			}
		}
		if !d.HasBegun() {
			if piece = d.Opening.Take(piece); piece == nil && d.Opening.Whole() {
				break
			}
			if d.Opening.Lost() {
				return attempt.ErrTransfer
			}
		}
		if piece == nil {
			continue
		}
		if err := an.write(ctx, rq, d, piece, streamed); err != nil {
			return err
		}
		an.learnForm(ctx, rq, d, piece)
	}
	if len(a.Kept()) > 0 {
		if piece := d.Opening.Take(a.Kept()); piece != nil {
			if err := an.write(ctx, rq, d, piece, false); err != nil {
				return err
			}
			an.learnForm(ctx, rq, d, piece)
			return nil
		}
	}
	if d.HasBegun() {
		return nil
	}
	if d.Opening.Missing() {
		return withhold(t, d)
	}
	if !d.Attempt.Choice.Begin() {
		return attempt.ErrStalled
	}
	return an.begin(rq, d)
}

// learnForm learns from an engine's own answer in one piece in which form it gives them, where that is of use.
func (an *Answers) learnForm(ctx context.Context, rq *intake.Request, d *attempt.Delivery, piece []byte) {
	if a := d.Attempt; rq.Streamed != nil && a.Whole() == nil && d.Status() == http.StatusOK && int64(len(piece)) == a.Response.ContentLength {
		an.attempts.Engines.LearnForm(ctx, rq, a.Choice.Replica, piece)
	}
}

// write gives the client one piece, and reads it.
func (an *Answers) write(ctx context.Context, rq *intake.Request, d *attempt.Delivery, piece []byte, streamed bool) error {
	a := d.Attempt
	over := streamed && d.Scan.Done() // before this piece: a client that left lacks nothing of the answer
	first := d.Scan.ContentEvents() == a.Earlier()
	between := d.Scan.Between()
	d.Scan.Feed(piece) // before the write: a client that reads nothing must not make the prefill look longer
	whole := len(a.Kept()) > 0 || int64(len(piece)) == a.Response.ContentLength
	if d.Scan.Aborted(whole) || (whole || !over && d.Scan.Done()) && a.WasPaused(ctx) {
		return d.Aborted(d.Scan.BeforeAbort(piece, between), streamed)
	}
	if !d.HasBegun() && !a.Choice.Begin() {
		return attempt.ErrStalled // the answer came too late
	}
	if first && streamed && d.Scan.ContentEvents() > a.Earlier() {
		d.SawFirstToken()
		an.attempts.Legs.Read(a)
	}
	if !d.HasBegun() {
		if err := an.begin(rq, d); err != nil {
			return err
		}
	}
	a.Choice.Writing(true)
	err := d.To.Write(piece)
	a.Choice.Writing(false)
	if err != nil && !over {
		return attempt.Gone(err)
	}
	if streamed {
		a.Progress(d.Scan.ContentEvents())
	}
	return nil
}

// begin gives the client the head of the answer.
func (an *Answers) begin(rq *intake.Request, d *attempt.Delivery) error {
	resp := d.Attempt.Response
	d.Begin(resp.Status)
	an.attempts.Blame.Served(rq, d, false)
	an.attempts.Pin(rq, d) // before the client can continue the response
	h := resp.Header
	delete(h, attempt.HeaderRetryAfter) // of an answer that succeeded; errors have one of the router's own
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	d.Attempt.Explain(rq, h)
	an.limits.Explain(rq, h)
	if err := d.To.Begin(resp.Status, h); err != nil {
		return attempt.Gone(err)
	}
	return nil
}

// Try makes one attempt: choose, send, deliver, release. It returns nil when the client has the whole answer.
func (an *Answers) Try(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery) (f *attempt.Failure) {
	for {
		if _, f = an.attempts.Open(ctx, rq, t, d); f == nil {
			f = an.Deliver(ctx, rq, t, d)
		}
		if f == nil || !an.attempts.Legs.Again(ctx, t, d, f) && !t.Unchanged(rq, f) {
			return f
		}
	}
}
