package ask

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Observer follows one booked request. Its methods are called after the load book has the report. They must not block and may be
// called by several goroutines.
type Observer interface {
	// FirstToken is called at the first token, with the number of output tokens that are known by then.
	FirstToken(now time.Time, outputTokens int)
	// Progress is called when more output tokens are known than before.
	Progress(outputTokens int)
	// Ended is called once, at the end.
	Ended(end *End)
}

// End is the end of a booked request.
type End struct {
	Result
	// At is the time of the end, First the time of the first token, zero if none was reported.
	At, First time.Time
	// Output is the number of output tokens, by the engine's usage or the reports.
	Output int
}

// Completed reports whether the engine gave a whole answer.
func (e *End) Completed() bool { return e.Result.End == decision.EndCompleted }

// EndOnly is an Observer of which only the end counts.
type EndOnly struct{}

func (EndOnly) FirstToken(time.Time, int) {}

func (EndOnly) Progress(int) {}

// Result has the known facts about a request when its reservation ends.
type Result struct {
	End decision.End
	// PromptTokens, OutputTokens and CachedTokens are the engine's usage; below zero when unknown.
	PromptTokens int
	OutputTokens int
	CachedTokens int
	// ServedBy is the replica that served in place of the chosen one, empty when that one did.
	ServedBy replica.ID
	// Counted is set when they are the router's own: the prompt as it was tokenized, the overlap that was predicted,
	// and the pieces of the answer.
	Counted bool
	// Claimed is set when an external caller reported the end: nothing of it was seen by a router.
	Claimed bool
}

// ResultOf is an end without known usage.
func ResultOf(end decision.End) Result {
	return Result{End: end, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
}
