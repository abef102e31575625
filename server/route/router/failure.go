package router

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// failure is why an attempt did not succeed.
type failure struct {
	outcome retry.Verdict
	// unchosen is set when no replica was chosen, so that there is no outcome.
	unchosen bool
	// poisoned is set when the request has stopped two replicas at the same token: it is not tried on another one.
	poisoned bool
	// public is the client's error when no other attempt succeeds.
	public *apierror.Error
}

// Error implements error.
func (f *failure) Error() string { return f.public.Error() }

// errClientGone is why a Sink refused bytes.
var errClientGone = errors.New("the client disconnected")

// errTransfer is why a stream is not used that began with an error instead of the first token.
var errTransfer = errors.New("the replica could not read the cache that another one computed")

// errStalled is why the answer of a stalled rank is not used.
var errStalled = errors.New("the replica has stalled")

// errContinuation is why a continuation cannot be used that is no stream.
var errContinuation = errors.New("the continuation is not streamed")

// gone marks an error of the Sink, to distinguish it from the replica's.
func gone(err error) error { return errors.Join(errClientGone, err) }

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
