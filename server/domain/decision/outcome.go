package decision

import (
	"fmt"
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
	ends
)

func endNames() [ends]string {
	return [ends]string{"completed", "canceled", "rejected", "failed", "moved", "expired", "removed", "resumed"}
}

// String gives the end in the form that metrics and JSON use.
func (e End) String() string {
	if e < ends {
		return endNames()[e]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (e End) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *End) UnmarshalText(text []byte) error {
	for i, name := range endNames() {
		if name == string(text) {
			*e = End(i)
			return nil
		}
	}
	return fmt.Errorf("unknown end %q", text)
}

// Outcome says what became of a decision.
type Outcome struct {
	ID      string       `json:"id"`
	Attempt int          `json:"attempt"`
	Replica replica.ID   `json:"replica"`
	Rank    uint16       `json:"rank"`
	Slot    replica.Slot `json:"slot"`
	End     End          `json:"end"`
	// TTFT is the time from the decision to the first token; 0 when none was seen.
	TTFT time.Duration `json:"ttft_ns,omitempty"`
	// Predicted is the time to the first token that the decision predicted.
	Predicted time.Duration `json:"predicted_ttft_ns,omitempty"`
	// Duration is the time from the decision to the end.
	Duration time.Duration `json:"duration_ns"`
	// PromptTokens, OutputTokens and CachedTokens are the engine's own usage; -1 when it gave none.
	PromptTokens int `json:"prompt_tokens"`
	OutputTokens int `json:"output_tokens"`
	CachedTokens int `json:"cached_tokens"`
	// Counted says that the engine gave none, and that they are the router's own: the prompt as it was tokenized,
	// the overlap that was predicted, and the pieces of the stream.
	Counted bool `json:"counted,omitempty"`
	// PredictedCached are the cached tokens that the decision counted on.
	PredictedCached int `json:"predicted_cached_tokens"`
}
