package settings

import (
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Options are the options of a choice. The zero value asks nothing.
type Options struct {
	// Policy overrides the model's policy; empty keeps it.
	Policy decision.Policy
	// Weights overrides the policy's numbers by the names of selector.Numbers.
	Weights map[string]float64
	// Objective overrides the model's; empty keeps it. Targets have their own, which counts more.
	Objective decision.Objective
	// Targets override the model's.
	Targets decision.Targets
	// Allowed, when not empty, names the only replicas that may serve; Denied names replicas that may not.
	Allowed []replica.ID
	Denied  []replica.ID
	// Pinned names the one replica that may serve. PinnedRank is its rank, -1 or below for any;
	// it is read only when Pinned is set.
	Pinned     replica.ID
	PinnedRank int
	// MinRank and MaxRank bound the rank index, inclusive; MaxRank 0 means no bound, below zero rank 0 only.
	MinRank int
	MaxRank int
	// MaxRequests, above zero, vetoes ranks with that many requests in flight.
	MaxRequests int
}
