package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// phase is how far a request had come when it failed.
type phase string

// The phases.
const (
	phaseDial  phase = "dial"
	phaseWrite phase = "write"
	phaseHead  phase = "head"
	phaseBody  phase = "body"
)

// requestError is a failure between kvpilot and a replica. Its text may hold addresses and is not
// for clients.
type requestError struct {
	replica replica.ID
	phase   phase
	err     error
}

// Error implements error.
func (e *requestError) Error() string {
	return fmt.Sprintf("replica %s: %s: %v", e.replica, e.phase, e.err)
}

// Unwrap returns the cause.
func (e *requestError) Unwrap() error { return e.err }

// failed wraps err; when the caller's own context ended, that is the error.
func failed(ctx context.Context, id replica.ID, at phase, err error) error {
	if cause := ended(ctx, err); cause != nil {
		err = cause
	}
	return &requestError{replica: id, phase: at, err: tlspeer.Explain(err)}
}

// ended says how ctx ended, nil when it did not. Package net keeps a context's deadline by a clock of its own, and may
// be a moment ahead of the context.
func ended(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if deadline, ok := ctx.Deadline(); ok && isTimeout(err) && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// sourceError is a failure to read the body that was to be sent: the replica has no part in it.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the request's body: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// UnsendableError is a request that cannot be written as HTTP, whichever replica it is for. Part is its method, path or query.
type UnsendableError struct{ Part string }

// Error implements error.
func (e *UnsendableError) Error() string {
	if e.Part == "method" {
		return "the request's method is no HTTP method"
	}
	return "the request's " + e.Part + " is not valid in a URL: percent-encode spaces, control characters and the percent sign"
}
