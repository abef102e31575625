package decision

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// End says how a request left its replica.
type End uint8

// The ends.
const (
	// EndCompleted: the engine answered to the last byte.
	EndCompleted End = iota
	// EndCanceled: the client went away.
	EndCanceled
	// EndRejected: the engine refused the request (its 4xx).
	EndRejected
	// EndFailed: connect failure, engine 5xx or broken stream.
	EndFailed
	// EndMoved: it was tried on another replica before the first byte.
	EndMoved
	// EndExpired: an external caller's lease ran out.
	EndExpired
	// EndRemoved: the replica left the fleet.
	EndRemoved
	// EndResumed: its stream ended early after the first byte and is resumed on another replica, as the next
	// attempt.
	EndResumed
	// EndUnserved: no replica could take the request, which was answered with an error.
	EndUnserved
	// EndHandedOver: the booking went to another decider, or to another choice, before anything was sent for it. The request continues.
	EndHandedOver
	// EndPoisoned: two replicas stopped at the same token of the stream, or both before its first one. The request is not tried on a third.
	EndPoisoned
	ends
)

func endNames() [ends]string {
	return [ends]string{"completed", "canceled", "rejected", "failed", "moved", "expired", "removed", "resumed", "unserved", "handed_over", "poisoned"}
}

// String gives the end in the form that metrics and logs use.
func (e End) String() string {
	if e < ends {
		return endNames()[e]
	}
	return "unknown"
}

// Outcome says what became of a decision.
type Outcome struct {
	ID      string
	Attempt int
	Replica replica.ID
	Rank    uint16
	Slot    replica.Slot
	End     End
	// TTFT is the time from the decision to the first token; 0 when none was seen.
	TTFT time.Duration
	// Predicted is the time to the first token that the decision predicted.
	Predicted time.Duration
	// Duration is the time from the decision to the end.
	Duration time.Duration
	// PromptTokens, OutputTokens and CachedTokens are the engine's own usage; -1 when it gave none.
	PromptTokens int
	OutputTokens int
	CachedTokens int
	// Counted says that the engine gave none, and that they are the router's own: the prompt as it was tokenized,
	// the overlap that was predicted, and the pieces of the stream.
	Counted bool
	// PredictedCached are the cached tokens that the decision counted on.
	PredictedCached int
	// AskedBy is the router that the request is of, where this one decided for it; empty for a request of this router.
	AskedBy string
	// External says that its caller sent the request, and knows its end.
	External bool
}
