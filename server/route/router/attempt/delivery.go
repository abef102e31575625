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
	// Begun is set once the client has the head of the answer, of this status.
	Begun  bool
	Status int
	// Scan reads what the client gets.
	Scan       sse.Scanner
	FirstToken time.Time
	// Opening is the beginning of the answer of the attempt under way.
	Opening opening.Opening

	// Attempt is the one under way or the last one; nil before the first choice and when none was made after a failure.
	Attempt *Attempt
	// Attempts counts them, chosen is set when one of them had a replica.
	Attempts int
	Chosen   bool
	Doubts   doubts
}

// SawFirstToken marks the end of a prefill; the client's first token is the first replica's.
func (d *Delivery) SawFirstToken() {
	now := time.Now()
	if d.FirstToken.IsZero() {
		d.FirstToken = now
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
	if d.Begun && streamed && len(rest) > 0 {
		if err := d.To.Write(rest); err != nil {
			return Gone(err)
		}
	}
	return resume.ErrAborted
}
