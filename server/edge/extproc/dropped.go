package extproc

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// headerDropped says in few words why a request was refused for the fleet's state.
const headerDropped = "X-Llm-D-Request-Dropped-Reason"

// The values of headerDropped that gateways know.
const (
	droppedSaturated   = "rejected-saturated"
	droppedNoEndpoints = "rejected-no-endpoints"
	droppedExpired     = "rejected-ttl-expired"
	droppedCancelled   = "rejected-context-cancelled"
	droppedStopping    = "rejected-shutting-down"
)

func droppedReasons() []string {
	return []string{droppedSaturated, droppedNoEndpoints, droppedExpired, droppedCancelled, droppedStopping}
}

// droppedFor is the value of headerDropped for an error; empty for one that is not about the fleet's state.
func droppedFor(e *apierror.Error) string {
	if refused, ok := errors.AsType[*chooser.Refused](e); ok {
		switch refused.Cause {
		case "timeout", "memory":
			return droppedExpired
		case "shutdown":
			return droppedStopping
		}
		return droppedSaturated
	}
	switch e.Reason {
	case apierror.Overloaded, apierror.DeadlineUnreachable:
		return droppedSaturated
	case apierror.NoReplica:
		return droppedNoEndpoints
	case apierror.Cancelled, apierror.DeadlineExceeded:
		return droppedCancelled
	case apierror.ShuttingDown:
		return droppedStopping
	default:
		return ""
	}
}
