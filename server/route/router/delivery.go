package router

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// answers gives clients the answers of attempts.
type answers struct {
	attempts  *dispatcher
	limits    *intake.Accounts
	responses *intake.Responses
	resumer   *resumer
	blanks    blanks
	// interrupted counts the streams that are lost.
	interrupted *interruptions
}

// newAnswers makes answers. results counts the streams that end early.
func newAnswers(in *intake.Intake, attempts *dispatcher, results *instruments.Keyed[string], meter metric.MeterProvider, log *slog.Logger) *answers {
	s := instruments.New(meter, "server/route/router")
	broken := newInterruptions(s)
	return &answers{
		attempts: attempts, limits: in.Limits, responses: in.Responses, blanks: blanks{empties: newEmpties(s), limits: in.Limits}, interrupted: broken,
		resumer: &resumer{attempts: attempts, retries: attempts.retries, tokens: attempts.tokens, results: results, interrupted: broken, log: log},
	}
}

// deliver forwards the answer of the attempt under way, and ends the attempt. It returns nil when the client has the whole answer.
func (an *answers) deliver(ctx context.Context, rq *intake.Request, t *tries, d *delivery) (f *failure) {
	end := decision.EndFailed // of an attempt that a panic ends
	defer func() { an.attempts.end(ctx, rq, d, f, end) }()
	err := an.forward(ctx, rq, t, d)
	if err == nil {
		outcome := retry.Broken // only its end was missing, which the router wrote
		if end = decision.EndCompleted; !d.attempt.broken {
			if outcome, end = d.outcome(); outcome == retry.EngineError {
				an.lost(rq, d.attempt, causeError, false)
			}
		}
		an.attempts.blame.settle(rq, d, d.attempt, outcome)
		an.blanks.compared(t, d)
		return nil
	}
	if f = an.attempts.broke(ctx, d, err); d.begun && f.outcome == retry.Broken {
		_, counted := errors.AsType[*failure](err)
		an.lost(rq, d.attempt, causeOf(d.attempt, f), counted)
	}
	if d.attempt == nil || d.attempt.ended {
		return f
	}
	d.attempt.endedEarly()
	settled := f.outcome
	if errors.Is(err, errTransfer) || errors.Is(err, resume.ErrNotTranslated) || errors.Is(err, resume.ErrNotWhole) || d.attempt.orphaned.Load() { // whose fault that is, is not known, or not this replica's
		settled = retry.Canceled
	}
	an.attempts.blame.settle(rq, d, d.attempt, settled)
	if end = endOf(f.outcome); d.begun && f.outcome == retry.Broken {
		end = decision.EndFailed
	}
	if an.attempts.stopper.stops(ctx, rq, t, d, f) {
		f.poisoned, end = true, decision.EndPoisoned
	}
	return f
}

// lost counts a stream that ended early for its client, too. Its result is counted where another replica was looked for; elsewhere it was
// not followed.
func (an *answers) lost(rq *intake.Request, a *attempt, cause string, counted bool) {
	if !rq.Parsed.Stream {
		return
	}
	var follower *resume.Follower
	if a != nil {
		follower = a.follower
	}
	an.interrupted.Add(interruption{kindOf(rq, follower), cause, false})
	if !counted && rq.Settings.ResumeStreams > 0 {
		an.resumer.results.Add(resultIneligible)
	}
}

// forward gives the client the answer, piece by piece as it comes. The Sink is begun with the first
// piece, not with the head, so that a replica that dies between the two costs nothing.
func (an *answers) forward(ctx context.Context, rq *intake.Request, t *tries, d *delivery) error {
	a, first := d.attempt, newReply(rq, d)
	streamed := first.streamed && a.whole == nil
	d.scan.Reset(rq.Parsed.Prompt.API, streamed)
	expect(rq, t, d, streamed)
	from := an.resumer.source(ctx, rq, t, d, first)
	defer from.close()
	// An object is of no use before its end: kept until then, one that ends early costs nothing.
	keeps := a.resp.ContentLength <= maxKept && mediaType(a.resp.Header) == "application/json"
	for {
		piece, err := from.next(ctx)
		if intake.IsEnd(err) {
			break
		}
		if err != nil {
			return err
		}
		if keeps {
			if piece, keeps = a.keep(piece); keeps {
				continue
			}
		}
		if !d.begun {
			if piece = d.opening.Take(piece); piece == nil && d.opening.Whole() {
				break
			}
			if d.opening.Lost() {
				return errTransfer
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
	if len(a.kept) > 0 {
		if piece := d.opening.Take(a.kept); piece != nil {
			if err := an.write(ctx, rq, d, piece, false); err != nil {
				return err
			}
			an.learnForm(ctx, rq, d, piece)
			return nil
		}
	}
	if d.begun {
		return nil
	}
	if d.opening.Missing() {
		return withhold(t, d)
	}
	if !d.attempt.choice.Begin() {
		return errStalled
	}
	return an.begin(rq, d)
}

// learnForm learns from an engine's own answer in one piece in which form it gives them, where that is of use.
func (an *answers) learnForm(ctx context.Context, rq *intake.Request, d *delivery, piece []byte) {
	if a := d.attempt; rq.Streamed != nil && a.whole == nil && d.status == http.StatusOK && int64(len(piece)) == a.resp.ContentLength {
		an.attempts.engines.learnForm(ctx, rq, a.choice.Replica, piece)
	}
}

// write gives the client one piece, and reads it.
func (an *answers) write(ctx context.Context, rq *intake.Request, d *delivery, piece []byte, streamed bool) error {
	a := d.attempt
	over := streamed && d.scan.Done() // before this piece: a client that left lacks nothing of the answer
	first := d.scan.ContentEvents() == a.earlier
	between := d.scan.Between()
	d.scan.Feed(piece) // before the write: a client that reads nothing must not make the prefill look longer
	whole := len(a.kept) > 0 || int64(len(piece)) == a.resp.ContentLength
	if d.scan.Aborted(whole) || (whole || !over && d.scan.Done()) && a.paused.Aborted(ctx) {
		return d.aborted(d.scan.BeforeAbort(piece, between), streamed)
	}
	if !d.begun && !a.choice.Begin() {
		return errStalled // the answer came too late
	}
	if first && streamed && d.scan.ContentEvents() > a.earlier {
		d.sawFirstToken()
		an.attempts.legs.read(a)
	}
	if !d.begun {
		if err := an.begin(rq, d); err != nil {
			return err
		}
	}
	a.choice.Writing(true)
	err := d.to.Write(piece)
	a.choice.Writing(false)
	if err != nil && !over {
		return gone(err)
	}
	if n := d.scan.ContentEvents() - a.earlier; streamed && n >= a.reported+progressStep {
		a.choice.Progress(n)
		a.reported = n
	}
	return nil
}

// begin gives the client the head of the answer.
func (an *answers) begin(rq *intake.Request, d *delivery) error {
	resp := d.attempt.resp
	d.begun, d.status = true, resp.Status
	an.attempts.blame.served(rq, d, false)
	an.attempts.pin(rq, d) // before the client can continue the response
	h := resp.Header
	delete(h, headerRetryAfter) // of an answer that succeeded; errors have one of the router's own
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	d.attempt.explain(rq, h)
	an.limits.Explain(rq, h)
	if err := d.to.Begin(resp.Status, h); err != nil {
		return gone(err)
	}
	return nil
}

// try makes one attempt: choose, send, deliver, release. It returns nil when the client has the whole answer.
func (an *answers) try(ctx context.Context, rq *intake.Request, t *tries, d *delivery) (f *failure) {
	for {
		if _, f = an.attempts.open(ctx, rq, t, d); f == nil {
			f = an.deliver(ctx, rq, t, d)
		}
		if f == nil || !an.attempts.legs.again(ctx, t, d, f) && !t.unchanged(rq, f) {
			return f
		}
	}
}
