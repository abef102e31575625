package retry

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Verdict is what one attempt means for the request and for the replica.
type Verdict uint8

// The verdicts.
const (
	// OK: a response below 400.
	OK Verdict = iota
	// ClientFault: a 4xx about the client's request; it is forwarded unchanged.
	ClientFault
	// Refused: 429, the replica rejects requests for now.
	Refused
	// Unavailable: 503.
	Unavailable
	// Gateway: 502 or 504, from a proxy before the engine.
	Gateway
	// EngineError: 500 or another 5xx; the engine accepted the request and failed it.
	EngineError
	// Unreachable: no connection, or it was reset before a response came.
	Unreachable
	// Timeout: no response within the time limit.
	Timeout
	// Malformed: the response was not valid HTTP.
	Malformed
	// Broken: the response ended early, after its head.
	Broken
	// OwnFault: this machine had no file descriptor, local port or buffer left for a connection.
	OwnFault
	// Stalled: the replica made no progress for far longer than it takes, and the attempt was stopped.
	Stalled
	// Canceled: the caller left or its deadline passed; it says nothing about the replica.
	Canceled
	// Empty: the answer was complete and had nothing in it where a token was due. Whose doing that is shows the answer of another replica.
	Empty
)

// Verdicts lists all of them, so that metrics exist from the start.
func Verdicts() []Verdict {
	list := make([]Verdict, len(verdictNames))
	for i := range list {
		list[i] = Verdict(i) //nolint:gosec // a dozen
	}
	return list
}

//nolint:gochecknoglobals // a constant table
var verdictNames = [...]string{
	OK: "ok", ClientFault: "client_fault", Refused: "refused", Unavailable: "unavailable", Gateway: "gateway",
	EngineError: "engine_error", Unreachable: "unreachable", Timeout: "timeout", Malformed: "malformed", Broken: "broken",
	OwnFault: "own_fault", Stalled: "stalled", Canceled: "canceled", Empty: "empty",
}

// String gives the verdict in the form that metrics and logs use.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown"
}

// Retryable reports whether another replica may be tried, provided that no byte of a response has been sent to the client.
func (v Verdict) Retryable() bool {
	switch v {
	case Refused, Unavailable, Gateway, Unreachable, Timeout, Malformed, Broken, Stalled, Empty:
		return true
	default:
		return false
	}
}

// Gone reports whether the replica vanished with the request. Its work is lost, so that another attempt puts no
// more load on the fleet than the first one was meant to.
func (v Verdict) Gone() bool { return v == Unreachable || v == Broken || v == Stalled }

// Fault reports whether the verdict counts against the replica. A 4xx never does, nor does a shortage of this machine.
func (v Verdict) Fault() bool {
	switch v {
	case Unavailable, Gateway, EngineError, Unreachable, Timeout, Malformed, Broken, Stalled:
		return true
	default:
		return false
	}
}

// After reads the header Retry-After, in seconds or as a date. It is false when the header is missing or invalid.
// The result is at least 0 and at most an hour.
func After(h http.Header, now time.Time) (time.Duration, bool) {
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
