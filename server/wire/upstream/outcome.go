package upstream

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/socket"
)

// Outcome is what one attempt means for the request and for the replica.
type Outcome uint8

// The outcomes.
const (
	// OutcomeOK: an answer below 400.
	OutcomeOK Outcome = iota
	// OutcomeClientFault: a 4xx about the client's request; it is passed on as it is.
	OutcomeClientFault
	// OutcomeRefused: 429, the replica wants no more for now.
	OutcomeRefused
	// OutcomeUnavailable: 503.
	OutcomeUnavailable
	// OutcomeGateway: 502 or 504, from something before the engine.
	OutcomeGateway
	// OutcomeEngineError: 500 or another 5xx; the engine took the request and failed it.
	OutcomeEngineError
	// OutcomeUnreachable: no connection, or it was reset before an answer came.
	OutcomeUnreachable
	// OutcomeTimeout: no answer within the time limit.
	OutcomeTimeout
	// OutcomeMalformed: the answer was no proper HTTP.
	OutcomeMalformed
	// OutcomeBroken: the answer broke off after its head.
	OutcomeBroken
	// OutcomeOwnFault: this machine had no file descriptor, local port or buffer left for a connection.
	OutcomeOwnFault
	// OutcomeStalled: the replica showed no sign of life for far longer than it takes, and was given up.
	OutcomeStalled
	// OutcomeCanceled: the caller went away or its deadline passed; it says nothing about the replica.
	OutcomeCanceled
)

// String gives the outcome in the form that metrics and logs use.
func (o Outcome) String() string {
	switch o {
	case OutcomeOK:
		return "ok"
	case OutcomeClientFault:
		return "client_fault"
	case OutcomeRefused:
		return "refused"
	case OutcomeUnavailable:
		return "unavailable"
	case OutcomeGateway:
		return "gateway"
	case OutcomeEngineError:
		return "engine_error"
	case OutcomeUnreachable:
		return "unreachable"
	case OutcomeTimeout:
		return "timeout"
	case OutcomeMalformed:
		return "malformed"
	case OutcomeBroken:
		return "broken"
	case OutcomeOwnFault:
		return "own_fault"
	case OutcomeStalled:
		return "stalled"
	case OutcomeCanceled:
		return "canceled"
	}
	return "unknown"
}

// outcomes lists all of them, so that metrics exist from the start.
func outcomes() []Outcome {
	list := make([]Outcome, 0, OutcomeCanceled+1)
	for o := OutcomeOK; o <= OutcomeCanceled; o++ {
		list = append(list, o)
	}
	return list
}

// Retryable reports whether another replica may be tried, provided that no byte of an answer
// has gone to the client.
func (o Outcome) Retryable() bool {
	switch o {
	case OutcomeRefused, OutcomeUnavailable, OutcomeGateway, OutcomeUnreachable, OutcomeTimeout, OutcomeMalformed, OutcomeBroken, OutcomeStalled:
		return true
	default:
		return false
	}
}

// Gone reports whether the replica vanished with the request: what it had done is lost, so that another try puts no
// more load on the fleet than the first one was meant to.
func (o Outcome) Gone() bool {
	return o == OutcomeUnreachable || o == OutcomeBroken || o == OutcomeStalled
}

// Fault reports whether the outcome counts against the replica. A 4xx never does, and what this machine lacks neither.
func (o Outcome) Fault() bool {
	switch o {
	case OutcomeUnavailable, OutcomeGateway, OutcomeEngineError, OutcomeUnreachable, OutcomeTimeout, OutcomeMalformed, OutcomeBroken, OutcomeStalled:
		return true
	default:
		return false
	}
}

// Classify says what the result of Client.Do or Response.Next means. With an error, resp is
// not looked at; io.EOF from Next is no error and must not be passed.
func Classify(resp *Response, err error) Outcome {
	if err != nil {
		return classifyError(err)
	}
	switch status := resp.Status; {
	case status < 400:
		return OutcomeOK
	case status == http.StatusTooManyRequests:
		return OutcomeRefused
	case status < 500:
		return OutcomeClientFault
	case status == http.StatusServiceUnavailable:
		return OutcomeUnavailable
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return OutcomeGateway
	}
	return OutcomeEngineError
}

func classifyError(err error) Outcome {
	var source *sourceError
	if errors.As(err, &source) {
		return OutcomeCanceled
	}
	var failure *Error
	if !errors.As(err, &failure) {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return OutcomeCanceled
		}
		return OutcomeUnreachable
	}
	// Timeouts of package net pass for context.DeadlineExceeded; the caller's own end is the value itself.
	if failure.Err == context.Canceled || failure.Err == context.DeadlineExceeded { //nolint:errorlint // see above
		return OutcomeCanceled
	}
	switch {
	case socket.OwnFault(failure.Err):
		return OutcomeOwnFault
	case errors.Is(failure.Err, errMalformed):
		return OutcomeMalformed
	case failure.Phase == PhaseBody:
		return OutcomeBroken
	case failure.Timeout() && failure.Phase != PhaseDial:
		return OutcomeTimeout
	}
	return OutcomeUnreachable
}

// RetryAfter reads the header of that name: seconds, or a date. It is false when there is
// none, or none that can be read. The result is not negative and at most an hour.
func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds == seconds {
		return time.Duration(min(max(seconds, 0), 3600) * float64(time.Second)), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), time.Hour), true
}
