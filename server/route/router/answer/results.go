package answer

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
)

// The results of a stream that ended early, after its first byte, as the labels of metrics distinguish them.
const (
	resultResumed    = "resumed"
	resultMoved      = "moved"      // resumed because its replica drains and its requests move
	resultEnded      = "ended"      // only its end was missing, which the router wrote
	resultIneligible = "ineligible" // a request or a stream that cannot be resumed exactly
	resultSeam       = "seam"       // the client may not have all text of the last token
	resultDiverged   = "diverged"   // the answer was to be repeated, and another replica wrote another one
	resultLimit      = "limit"
	resultBudget     = "budget"
	resultTaken      = "taken_over" // a client continued a stream of another router here
)

func resumeResults() []string {
	return []string{resultResumed, resultMoved, resultEnded, resultIneligible, resultSeam, resultDiverged, attempt.ResultPoison, resultLimit, resultBudget, resultTaken}
}

// metrics counts answers.
type metrics struct {
	Empties     instruments.Keyed[string]       `metric:"kvpilot.router.empty_answers" unit:"{answer}" by:"result" help:"Answers of replicas without a token where one was due, by result: retried (another replica gave one, which counts against this one), agreed (another gave none either, so it is the request's doing and was passed on) or passed (no other replica could be asked)."`
	Interrupted instruments.Keyed[interruption] `metric:"kvpilot.router.interrupted" unit:"{stream}" by:"kind cause result" help:"Streams that lost their replica after their first byte, by kind (messages, responses; of chat and completions: chat, completion: continued as text, parsed: by token ids, repeated: repeated and compared; other), cause and result: continued on another replica, or lost. A stream counts each time. Causes: broken connection, error of the engine in the stream, stalled, aborted, diverged, and, of those that move, drain, halted, gone."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/route/router", m)
	m.Empties.Know(emptyRetried, emptyAgreed, emptyPassed)
	m.Interrupted.Know(interruptions()...)
	return m
}
