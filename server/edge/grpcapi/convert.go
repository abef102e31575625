package grpcapi

import (
	"fmt"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

func feedProto(s kvblock.FeedState) kvpilotv1.FeedState {
	switch s {
	case kvblock.FeedNone:
		return kvpilotv1.FeedState_FEED_STATE_NONE
	case kvblock.FeedCold:
		return kvpilotv1.FeedState_FEED_STATE_COLD
	case kvblock.FeedExact:
		return kvpilotv1.FeedState_FEED_STATE_EXACT
	case kvblock.FeedDegraded:
		return kvpilotv1.FeedState_FEED_STATE_DEGRADED
	}
	return kvpilotv1.FeedState_FEED_STATE_UNSPECIFIED
}

func stateProto(s replica.State) kvpilotv1.ReplicaState {
	switch s {
	case replica.StateStarting:
		return kvpilotv1.ReplicaState_REPLICA_STATE_STARTING
	case replica.StateReady:
		return kvpilotv1.ReplicaState_REPLICA_STATE_READY
	case replica.StateDraining:
		return kvpilotv1.ReplicaState_REPLICA_STATE_DRAINING
	case replica.StateUnhealthy:
		return kvpilotv1.ReplicaState_REPLICA_STATE_UNHEALTHY
	}
	return kvpilotv1.ReplicaState_REPLICA_STATE_UNSPECIFIED
}

func breakerProto(s breaker.State) kvpilotv1.BreakerState {
	switch s {
	case breaker.Closed:
		return kvpilotv1.BreakerState_BREAKER_STATE_CLOSED
	case breaker.Trial:
		return kvpilotv1.BreakerState_BREAKER_STATE_TRIAL
	case breaker.Open:
		return kvpilotv1.BreakerState_BREAKER_STATE_OPEN
	}
	return kvpilotv1.BreakerState_BREAKER_STATE_UNSPECIFIED
}

// programID is the public form of a program's name.
func programID(name uint64) string {
	if name == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", name)
}
