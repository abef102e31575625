package upstream

import (
	"context"
	"errors"
	"net/http"

	"github.com/kvpilot/kvpilot/server/wire/http1"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/socket"
)

// Classify says what the result of Client.Do or Response.Next means. With an error, resp is
// not looked at; io.EOF from Next is no error and must not be passed.
func Classify(resp *Response, err error) retry.Verdict {
	if err != nil {
		return classifyError(err)
	}
	switch status := resp.Status; {
	case status < 400:
		return retry.OK
	case status == http.StatusTooManyRequests:
		return retry.Refused
	case status < 500, status == http.StatusNotImplemented:
		return retry.ClientFault
	case status == http.StatusServiceUnavailable:
		return retry.Unavailable
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return retry.Gateway
	}
	return retry.EngineError
}

func classifyError(err error) retry.Verdict {
	var source *sourceError
	var unsendable *UnsendableError
	var failure *requestError
	switch {
	case errors.As(err, &source):
		return retry.Canceled
	case errors.As(err, &unsendable):
		return retry.Unsendable
	case errors.As(err, &failure):
		return classifyFailure(failure)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return retry.Canceled
	}
	return retry.OwnFault // nothing of it reached a replica
}

func classifyFailure(failure *requestError) retry.Verdict {
	// Timeouts of package net pass for context.DeadlineExceeded; the caller's own end is the value itself.
	if failure.err == context.Canceled || failure.err == context.DeadlineExceeded { //nolint:errorlint // see above
		return retry.Canceled
	}
	switch {
	case socket.OwnFault(failure.err), errors.Is(failure.err, errShut):
		return retry.OwnFault
	case failure.phase == phaseDial:
		return retry.Unreachable
	case errors.Is(failure.err, http1.ErrMalformed):
		return retry.Malformed
	case failure.phase == phaseBody:
		return retry.Broken
	case isTimeout(failure.err):
		return retry.Timeout
	}
	return retry.Reset
}
