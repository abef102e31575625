package attempt

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/opening"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// EndOf says how the decision ended, for the record.
func EndOf(o retry.Verdict) decision.End {
	switch o {
	case retry.OK:
		return decision.EndCompleted
	case retry.Canceled:
		return decision.EndCanceled
	case retry.ClientFault:
		return decision.EndRejected
	case retry.EngineError: // mostly the last attempt
		return decision.EndFailed
	default:
	}
	if o.Retryable() {
		return decision.EndMoved
	}
	return decision.EndFailed
}

// Delivery is the answer as the client gets it, from one or more attempts. It belongs to one goroutine.
type Delivery struct {
	To intake.Sink
	// begun is set once the client has the head of the answer, of this status.
	begun  bool
	status int
	// Scan reads what the client gets.
	Scan       sse.Scanner
	firstToken time.Time
	// Opening is the beginning of the answer of the attempt under way.
	Opening opening.Opening

	// Attempt is the one under way or the last one; nil before the first choice and when none was made after a failure.
	Attempt *Attempt
	// attempts counts them, chosen is set when one of them had a replica.
	attempts int
	chosen   bool
	doubts   doubts
}

// Part is the delivery of a stream inside the answer, from the same attempts.
func (d *Delivery) Part() *Delivery { return &Delivery{Attempt: d.Attempt, doubts: d.doubts} }

// Aside is a delivery to the same client whose attempts may come to nothing, while this one continues.
func (d *Delivery) Aside() *Delivery { return &Delivery{To: d.To, begun: true, doubts: d.doubts} }

// Begin notes that the client has the head of the answer, of this status.
func (d *Delivery) Begin(status int) { d.begun, d.status = true, status }

// Report sets the status for the record, of an answer that no attempt gave.
func (d *Delivery) Report(status int) { d.status = status }

// Take makes a the current attempt.
func (d *Delivery) Take(a *Attempt) { d.Attempt, d.chosen = a, true }

// Count adds attempts of another delivery.
func (d *Delivery) Count(attempts int) { d.attempts += attempts }

// Learn copies the doubts that the attempts of another delivery leave.
func (d *Delivery) Learn(from *Delivery) { d.doubts = from.doubts }

// HasBegun reports whether the client has the head of the answer.
func (d *Delivery) HasBegun() bool { return d.begun }

// Status is the status of the answer; 0 before it begins.
func (d *Delivery) Status() int { return d.status }

// FirstToken is when the client got the first token; zero before.
func (d *Delivery) FirstToken() time.Time { return d.firstToken }

// Attempts counts the attempts.
func (d *Delivery) Attempts() int { return d.attempts }

// WasChosen reports whether an attempt had a replica.
func (d *Delivery) WasChosen() bool { return d.chosen }

// Cause is the cause of the last failure, as far as it is known.
func (d *Delivery) Cause() retry.Cause { return d.doubts.Cause }

// SawFirstToken marks the end of a prefill; the client's first token is the first replica's.
func (d *Delivery) SawFirstToken() {
	now := time.Now()
	if d.firstToken.IsZero() {
		d.firstToken = now
	}
	d.Attempt.Choice.FirstToken()
	d.Attempt.Hop.FirstToken(now)
}

// Outcome says what a complete answer means: an engine may report its failure in a stream.
func (d *Delivery) Outcome() (retry.Verdict, decision.End) {
	switch {
	case !d.Scan.Failed():
		return retry.OK, decision.EndCompleted
	case d.Scan.ContentEvents() == 0:
		return retry.ClientFault, decision.EndFailed // the cause is not known
	}
	return retry.EngineError, decision.EndFailed
}

// Aborted gives the client of a stream that has begun the rest of the answer, up to the event that claims to end it.
func (d *Delivery) Aborted(rest []byte, streamed bool) error {
	if d.begun && streamed && len(rest) > 0 {
		if err := d.To.Write(rest); err != nil {
			return Gone(err)
		}
	}
	return resume.ErrAborted
}
