package attempt

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Failure is why an attempt did not succeed.
type Failure struct {
	Outcome retry.Verdict
	// Unchosen is set when no replica was chosen, so that there is no outcome.
	Unchosen bool
	// Poisoned is set when the request has stopped two replicas at the same token: it is not tried on another one.
	Poisoned bool
	// Public is the client's error when no other attempt succeeds.
	Public *apierror.Error
}

// Error implements error.
func (f *Failure) Error() string { return f.Public.Error() }

// errClientGone is why a Sink refused bytes.
var errClientGone = errors.New("the client disconnected")

// ErrTransfer is why a stream is not used that began with an error instead of the first token.
var ErrTransfer = errors.New("the replica could not read the cache that another one computed")

// ErrStalled is why the answer of a stalled rank is not used.
var ErrStalled = errors.New("the replica has stalled")

// ErrContinuation is why a continuation cannot be used that is no stream.
var ErrContinuation = errors.New("the continuation is not streamed")

// Gone marks an error of the Sink, to distinguish it from the replica's.
func Gone(err error) error { return errors.Join(errClientGone, err) }

// bodyFault is the client's own end of an upload: too large, too slow, or gone.
func bodyFault(err error) (*apierror.Error, bool) {
	return errors.AsType[*apierror.Error](err)
}

// unsendable rejects a request that cannot be written as HTTP.
func unsendable(err error) *apierror.Error {
	var bad *upstream.UnsendableError
	if !errors.As(err, &bad) {
		return apierror.From(err)
	}
	return apierror.New(apierror.InvalidBody, bad.Error(), err, apierror.WithParam(bad.Part))
}
