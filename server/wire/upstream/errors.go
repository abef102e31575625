package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Phase is how far a request had come when it failed.
type Phase string

// The phases.
const (
	PhaseDial  Phase = "dial"
	PhaseWrite Phase = "write"
	PhaseHead  Phase = "head"
	PhaseBody  Phase = "body"
)

// Error is a failure between kvpilot and a replica. Its text may hold addresses and is not
// for clients.
type Error struct {
	Replica replica.ID
	Phase   Phase
	Err     error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("replica %s: %s: %v", e.Replica, e.Phase, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether a time limit ended the request.
func (e *Error) Timeout() bool {
	var timeout net.Error
	return errors.Is(e.Err, os.ErrDeadlineExceeded) || errors.As(e.Err, &timeout) && timeout.Timeout()
}

// failed wraps err; when the caller's own context ended, that is the error.
func failed(ctx context.Context, id replica.ID, phase Phase, err error) error {
	if cause := ended(ctx, err); cause != nil {
		err = cause
	}
	return &Error{Replica: id, Phase: phase, Err: tlspeer.Explain(err)}
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
