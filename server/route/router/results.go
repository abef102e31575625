package router

// The results of a stream that ended early, after its first byte, as the labels of metrics distinguish them.
const (
	resultResumed    = "resumed"
	resultMoved      = "moved"      // resumed because its replica drains and its requests move
	resultEnded      = "ended"      // only its end was missing, which the router wrote
	resultIneligible = "ineligible" // a request or a stream that cannot be resumed exactly
	resultSeam       = "seam"       // the client may not have all text of the last token
	resultDiverged   = "diverged"   // the answer was to be repeated, and another replica wrote another one
	resultPoison     = "poison"     // two replicas stopped at the same token
	resultLimit      = "limit"
	resultBudget     = "budget"
	resultTaken      = "taken_over" // a client continued a stream of another router here
)

func resumeResults() []string {
	return []string{resultResumed, resultMoved, resultEnded, resultIneligible, resultSeam, resultDiverged, resultPoison, resultLimit, resultBudget, resultTaken}
}
