package answer

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
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

// NewResumes declares the count of streams that ended early.
func NewResumes(p metric.MeterProvider) *instruments.Keyed[string] {
	resumes := instruments.NewKeyed(instruments.New(p, "server/route/router"), intake.MetricNS+"resumes", "{stream}", "Streams that ended early, after their first byte, by result: resumed, moved (from a replica that drains), ended (only the end was missing), or the reason why they were not resumed.", resumeResults(), intake.ByResult)
	return &resumes
}
