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
	Empties     instruments.Keyed[string]       `metric:"kvpilot.router.empty_answers" unit:"{answer}" by:"result" help:"Answers without a token where one was due, by result: retried (another replica gave one), agreed (another gave none either) or passed (no other replica could be asked)."`
	Interrupted instruments.Keyed[interruption] `metric:"kvpilot.router.interrupted" unit:"{stream}" by:"kind cause result" help:"Streams that lost their replica after their first byte, by kind (chat, completion, parsed, repeated, messages, responses, other), cause (broken, error, stalled, aborted, diverged; of moves drain, halted, gone) and result (continued, lost). A stream counts each time."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/route/router", m)
	m.Empties.Know(emptyRetried, emptyAgreed, emptyPassed)
	m.Interrupted.Know(interruptions()...)
	return m
}
