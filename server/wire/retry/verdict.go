package retry

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Verdict is the meaning of one attempt for the request and for the replica.
type Verdict uint8

// The verdicts.
const (
	// OK: a response below 400.
	OK Verdict = iota
	// ClientFault: a 4xx about the client's request, or a 501; it is forwarded unchanged.
	ClientFault
	// Refused: 429, the replica rejects requests for now.
	Refused
	// Unavailable: 503.
	Unavailable
	// Gateway: 502 or 504, from a proxy before the engine.
	Gateway
	// EngineError: 500 or another 5xx; the engine accepted the request and failed it.
	EngineError
	// Unreachable: no connection could be opened.
	Unreachable
	// Reset: the connection ended after the request was sent and before a response came.
	Reset
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
	// Unsendable: the router cannot write the request as HTTP; nothing was sent.
	Unsendable
	// Canceled: the caller left or its deadline passed; it says nothing about the replica.
	Canceled
	// Empty: the answer was complete and had nothing in it where a token was due. Whose doing that is shows the answer of another replica.
	Empty
	// Moved: the replica drains, and the attempt was stopped so that another one serves the request.
	Moved
)

// Verdicts lists all of them, so that metrics exist from the start.
func Verdicts() []Verdict {
	list := make([]Verdict, len(rows))
	for i := range list {
		list[i] = Verdict(i)
	}
	return list
}

// row has the rules of a verdict.
type row struct {
	name string
	// cause is the party that is at fault as long as nothing else is known.
	cause Cause
	// retryable, gone, fault and follows are the methods' answers.
	retryable, gone, fault, follows bool
}

var rows = [...]row{
	OK:          {name: "ok"},
	ClientFault: {name: "client_fault", cause: CauseRequest},
	Refused:     {name: "refused", cause: CauseReplica, retryable: true},
	Unavailable: {name: "unavailable", cause: CauseReplica, retryable: true, fault: true, follows: true},
	Gateway:     {name: "gateway", cause: CauseNetwork, retryable: true, fault: true, follows: true},
	EngineError: {name: "engine_error", cause: CauseReplica, retryable: true, fault: true, follows: true},
	Unreachable: {name: "unreachable", cause: CauseNetwork, retryable: true, gone: true, fault: true},
	Reset:       {name: "reset", cause: CauseReplica, retryable: true, gone: true, fault: true, follows: true},
	Timeout:     {name: "timeout", cause: CauseReplica, retryable: true, fault: true, follows: true},
	Malformed:   {name: "malformed", cause: CauseReplica, retryable: true, fault: true, follows: true},
	Broken:      {name: "broken", cause: CauseReplica, retryable: true, gone: true, fault: true, follows: true},
	OwnFault:    {name: "own_fault", cause: CauseRouter},
	Stalled:     {name: "stalled", cause: CauseRank, retryable: true, gone: true, fault: true, follows: true},
	Unsendable:  {name: "unsendable", cause: CauseRequest},
	Canceled:    {name: "canceled", cause: CauseCaller},
	Empty:       {name: "empty", cause: CauseReplica, retryable: true},
	Moved:       {name: "moved", retryable: true, gone: true},
}

// row is the verdict's; of an unknown one it is empty.
func (v Verdict) row() row {
	if int(v) < len(rows) {
		return rows[v]
	}
	return row{name: "unknown"}
}

// String gives the verdict in the form that metrics and logs use.
func (v Verdict) String() string { return v.row().name }

// Cause is the party that is at fault as long as no comparison with another replica has shown another one.
func (v Verdict) Cause() Cause { return v.row().cause }

// Retryable reports whether another replica may be tried, provided that no byte of a response has been sent to the client.
func (v Verdict) Retryable() bool { return v.row().retryable }

// Gone reports whether the replica vanished with the request. Its work is lost, so that another attempt puts no
// more load on the fleet than the first one was meant to.
func (v Verdict) Gone() bool { return v.row().gone }

// Fault reports whether the verdict may count against the replica. A 4xx never does, nor does a shortage of this machine.
func (v Verdict) Fault() bool { return v.row().fault }

// Follows reports whether the fault may follow the request to other replicas: the replica had the request when it failed, so
// that the request may be the cause.
func (v Verdict) Follows() bool { return v.row().follows }

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
