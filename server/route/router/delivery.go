package router

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// progressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const progressStep = 8

// delivery is the answer as the client gets it, from one or more attempts. It belongs to one goroutine.
type delivery struct {
	to Sink
	// begun is set once the client has the head of the answer, of this status.
	begun  bool
	status int
	// scan reads what the client gets.
	scan       sse.Scanner
	firstToken time.Time
	// opening is the beginning of the answer of the attempt under way.
	opening opening

	// attempt is the one under way or the last one; nil before the first choice and when none was made after a failure.
	attempt *attempt
	// attempts counts them, chosen is set when one of them had a replica.
	attempts int
	chosen   bool
	doubts   doubts
}

// source is an answer to be read: a replica's, or a stream that others resume.
type source interface {
	// next returns the next bytes, valid until the following call, and io.EOF at the end of a complete answer.
	next(ctx context.Context) ([]byte, error)
	// close ends what the source has under way apart from the answer.
	close()
}

// reply is the answer of one replica.
type reply struct {
	rq *request
	d  *delivery
	a  *attempt
	// streamed is set for a stream of events.
	streamed bool
	lead     sse.Lead
	// ahead is what was read of the answer before it was needed.
	ahead []byte
}

func newReply(rq *request, d *delivery) *reply {
	return &reply{rq: rq, d: d, a: d.attempt, streamed: mediaType(d.attempt.resp.Header) == "text/event-stream"}
}

// next implements source. Comments in front of the first event are dropped: they must not begin the client's answer, since
// another replica may still give it.
func (p *reply) next(context.Context) ([]byte, error) {
	if piece := p.ahead; piece != nil {
		p.ahead = nil
		return piece, nil
	}
	piece, err := p.a.resp.Next()
	for err == nil {
		if !p.streamed || !sse.IsComment(piece) { // an engine that makes no progress sends comments too
			p.a.choice.Alive()
		}
		if !p.streamed {
			return piece, nil
		}
		if piece = p.lead.Skip(piece); len(piece) > 0 {
			return piece, nil
		}
		piece, err = p.a.resp.Next()
	}
	switch {
	case p.streamed && p.d.scan.Done(): // the client has the whole answer, and may have left
		return nil, io.EOF
	case isEnd(err) && p.streamed && (p.d.scan.Events() > 0 || p.a.follower != nil) && !p.complete():
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err // the plain io.EOF is the end; a wrapped one is an answer that was cut off
}

// close implements source.
func (*reply) close() {}

// complete reports whether a stream that ended properly is whole: it said so, it reported an error, or each of its
// choices is finished, as some engines leave it at. What streams of other formats say is not known here.
func (p *reply) complete() bool {
	scan := &p.d.scan
	if scan.Done() || scan.Failed() {
		return true
	}
	switch ask := &p.rq.parsed.Prompt; ask.API {
	case prompt.APIChat, prompt.APICompletions:
		return scan.Finished() >= p.rq.parsed.N*max(1, len(ask.Texts), len(ask.Batch))
	case prompt.APIOther:
		return true
	case prompt.APIResponses, prompt.APIMessages:
	}
	return false
}

// answers gives clients the answers of attempts.
type answers struct {
	attempts  *attempts
	blame     *blame
	limits    *limits
	responses *responses
	resumer   *resumer
	empties   *counter[string]
	// interrupted counts the streams that are lost.
	interrupted *interruptions
}

// deliver forwards the answer of the attempt under way, and ends the attempt. It returns nil when the client has the whole answer.
func (an *answers) deliver(ctx context.Context, rq *request, t *tries, d *delivery) (f *failure) {
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
		an.blame.settle(rq, d, d.attempt, outcome)
		an.compared(t, d)
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
	if errors.Is(err, errTransfer) || errors.Is(err, resume.ErrNotTranslated) || d.attempt.orphaned.Load() { // whose fault that is, is not known, or not this replica's
		settled = retry.Canceled
	}
	an.blame.settle(rq, d, d.attempt, settled)
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
func (an *answers) lost(rq *request, a *attempt, cause string, counted bool) {
	if !rq.parsed.Stream {
		return
	}
	var follower *resume.Follower
	if a != nil {
		follower = a.follower
	}
	an.interrupted.add(interruption{kindOf(rq, follower), cause, false})
	if !counted && rq.set.ResumeStreams > 0 {
		an.resumer.results.add(resultIneligible)
	}
}

// endedEarly notes that the answer ended early.
func (a *attempt) endedEarly() {
	a.broken = true
	a.hop.endedEarly()
}

// outcome says what a complete answer means: an engine may report its failure in a stream.
func (d *delivery) outcome() (retry.Verdict, decision.End) {
	switch {
	case !d.scan.Failed():
		return retry.OK, decision.EndCompleted
	case d.scan.ContentEvents() == 0:
		return retry.ClientFault, decision.EndFailed // the cause is not known
	}
	return retry.EngineError, decision.EndFailed
}

// maxKept bounds an answer that is forwarded as one piece; a longer one goes to the client as it comes.
const maxKept = 1 << 20

// forward gives the client the answer, piece by piece as it comes. The Sink is begun with the first
// piece, not with the head, so that a replica that dies between the two costs nothing.
func (an *answers) forward(ctx context.Context, rq *request, t *tries, d *delivery) error {
	first := newReply(rq, d)
	d.scan.Reset(rq.parsed.Prompt.API, first.streamed)
	d.open(rq, t, first.streamed)
	from := an.resumer.source(ctx, rq, t, d, first)
	defer from.close()
	a := d.attempt
	// An object is of no use before its end: kept until then, one that ends early costs nothing.
	keeps := a.resp.ContentLength <= maxKept && mediaType(a.resp.Header) == "application/json"
	for {
		piece, err := from.next(ctx)
		if isEnd(err) {
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
			if piece = d.opening.take(piece); piece == nil && d.opening.whole {
				break
			}
			if d.opening.arrival.lost {
				return errTransfer
			}
		}
		if piece == nil {
			continue
		}
		if err := an.write(ctx, rq, d, piece, first.streamed); err != nil {
			return err
		}
	}
	if len(a.kept) > 0 {
		if piece := d.opening.take(a.kept); piece != nil {
			return an.write(ctx, rq, d, piece, false)
		}
	}
	if d.begun {
		return nil
	}
	if d.opening.missing() {
		return an.withhold(t, d)
	}
	if !d.attempt.choice.Begin() {
		return errStalled
	}
	return an.begin(rq, d)
}

// keep adds a piece to an answer that is forwarded as one piece. It returns what to forward once that has come whole, or is
// too long.
func (a *attempt) keep(piece []byte) (whole []byte, keeps bool) {
	if len(a.kept) == 0 && int64(len(piece)) == a.resp.ContentLength {
		return piece, false // as nearly always
	}
	if a.kept == nil && a.resp.ContentLength > 0 {
		a.kept = make([]byte, 0, a.resp.ContentLength)
	}
	if a.kept = append(a.kept, piece...); len(a.kept) <= maxKept {
		return nil, true
	}
	whole, a.kept = a.kept, nil
	return whole, false
}

// write gives the client one piece, and reads it.
func (an *answers) write(ctx context.Context, rq *request, d *delivery, piece []byte, streamed bool) error {
	a := d.attempt
	over := streamed && d.scan.Done() // before this piece: a client that left lacks nothing of the answer
	first := d.scan.ContentEvents() == a.earlier
	between := d.scan.Between()
	d.scan.Feed(piece) // before the write: a client that reads nothing must not make the prefill look longer
	whole := len(a.kept) > 0 || int64(len(piece)) == a.resp.ContentLength
	if d.scan.Aborted(whole) || (whole || !over && d.scan.Done()) && a.paused.aborted(ctx) {
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

// aborted gives the client of a stream that has begun the rest of the answer, up to the event that claims to end it.
func (d *delivery) aborted(rest []byte, streamed bool) error {
	if d.begun && streamed && len(rest) > 0 {
		if err := d.to.Write(rest); err != nil {
			return gone(err)
		}
	}
	return resume.ErrAborted
}

// begin gives the client the head of the answer.
func (an *answers) begin(rq *request, d *delivery) error {
	resp := d.attempt.resp
	d.begun, d.status = true, resp.Status
	an.blame.served(rq, d, false)
	an.responses.pin(rq, d) // before the client can continue the response
	h := resp.Header
	delete(h, headerRetryAfter) // of an answer that succeeded; errors have one of the router's own
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	rq.explain(d.attempt, h)
	an.limits.explain(rq, h)
	if err := d.to.Begin(resp.Status, h); err != nil {
		return gone(err)
	}
	return nil
}

// sawFirstToken marks the end of a prefill; the client's first token is the first replica's.
func (d *delivery) sawFirstToken() {
	now := time.Now()
	if d.firstToken.IsZero() {
		d.firstToken = now
	}
	d.attempt.choice.FirstToken()
	if h := d.attempt.hop; h != nil {
		h.firstToken = now
	}
}

// mediaType is the type of an answer without its parameters, empty when it cannot be read.
func mediaType(h http.Header) string {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}

// try makes one attempt: choose, send, deliver, release. It returns nil when the client has the whole answer.
func (an *answers) try(ctx context.Context, rq *request, t *tries, d *delivery) (f *failure) {
	for {
		if _, f = an.attempts.open(ctx, rq, t, d); f == nil {
			f = an.deliver(ctx, rq, t, d)
		}
		if f == nil || !an.attempts.legs.again(ctx, t, d, f) && !rq.again(t, f) {
			return f
		}
	}
}
