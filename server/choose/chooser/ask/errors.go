package ask

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Errors that callers distinguish with errors.Is. Choose also returns the context's error when
// the caller has left.
var (
	// ErrInvalid: the request itself cannot be decided (unknown policy or weight, no ID).
	ErrInvalid = errors.New("invalid choice request")
	// ErrDuplicate: the id and attempt are already booked.
	ErrDuplicate = errors.New("reservation exists")
)

// Causes of a Refused.
const (
	// causeTarget: no rank can keep the request's targets.
	CauseTarget = "target"
	// causeMemory: a call of a program waited for memory too long.
	CauseMemory = "memory"
)

// NoReplica reports that no candidate was left. Decision has every veto.
type NoReplica struct {
	Decision *decision.Decision
	// RetryAfter is a hint for the caller.
	RetryAfter time.Duration
}

func (e *NoReplica) Error() string {
	return fmt.Sprintf("no replica can serve model %q now: all %d candidates are vetoed", e.Decision.Model, e.Decision.Listed())
}

// ReadCause is a Refused.Cause as another router names it: one of the known ones, or "other".
func ReadCause(text string) string {
	switch text {
	case "queue_full", "queue_bytes", "deadline", "timeout", "shutdown", CauseTarget, CauseMemory, "reservations_full":
		return text
	}
	return "other"
}

// Refused reports that the hold queue rejected the request, or that its targets cannot be kept.
type Refused struct {
	// Cause is "queue_full", "queue_bytes", "deadline", "timeout", "memory", "shutdown" or "target".
	Cause string
	// RetryAfter is when a retry has a chance, from the predicted drain of the queue.
	RetryAfter time.Duration
	// Memory is the wait of a program that waited for memory, or would have to; nil for any other request.
	Memory *decision.MemoryWait
}

func (e *Refused) Error() string {
	if e.Memory != nil {
		return "refused: " + e.Cause + ": " + e.Memory.String()
	}
	return "refused: " + e.Cause
}
