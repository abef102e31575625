package selector

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Filter has the conditions that a candidate must pass. Every ready replica passes its zero value.
type Filter struct {
	// Mute admits replicas that are unhealthy only because their probes get no answer.
	Mute bool
	// Model is the name the replicas must serve; empty skips the check. A LoRA adapter is a model.
	Model string
	// PromptTokens must fit the model's context length, where that is known. An estimate must not be given.
	PromptTokens int
	// Excluded, Denied and Allowed are lists of replicas; an empty Allowed allows all.
	Excluded, Denied, Allowed []replica.ID
	// Pinned names the only replica; PinnedRank its rank, below zero for any. Draining admits a replica
	// that drains: no other replica has its stored response.
	Pinned     replica.ID
	PinnedRank int
	Draining   bool
	// MinRank and MaxRank bound the rank index, inclusive; MaxRank 0 is no bound, below zero only rank 0 passes.
	MinRank, MaxRank int
}

// Plain reports whether the verdict on a replica follows from its state, its models and the length of the prompt.
func (f *Filter) Plain() bool {
	return len(f.Excluded)+len(f.Denied)+len(f.Allowed) == 0 && f.Pinned == "" && !f.Draining
}

// serves reports whether the replica can take the request in its state.
func (f *Filter) serves(r *replica.Replica) bool {
	switch r.State {
	case replica.StateReady:
		return true
	case replica.StateDraining:
		return f.Draining
	case replica.StateUnhealthy:
		return f.Mute && r.Mute
	case replica.StateStarting:
	}
	return false
}

// Replica returns the veto that holds for all ranks of r.
func (f *Filter) Replica(r *replica.Replica) decision.Veto {
	switch {
	case !f.serves(r) && r.State == replica.StateDraining:
		return decision.VetoDraining
	case !f.serves(r):
		return decision.VetoState
	case len(f.Excluded) > 0 && slices.Contains(f.Excluded, r.ID):
		return decision.VetoExcluded
	case len(f.Denied) > 0 && slices.Contains(f.Denied, r.ID):
		return decision.VetoDenied
	case len(f.Allowed) > 0 && !slices.Contains(f.Allowed, r.ID):
		return decision.VetoNotAllowed
	case f.Pinned != "" && f.Pinned != r.ID:
		return decision.VetoPinned
	}
	if f.Model != "" {
		m, ok := r.Serves(f.Model)
		if !ok {
			return decision.VetoModel
		}
		if longest := Context(r, m); longest > 0 && f.PromptTokens > longest {
			return decision.VetoContext
		}
	}
	return decision.VetoNone
}

// Context is the length of the model's context on r, 0 when it is not known. An adapter has the context of its base model.
func Context(r *replica.Replica, m replica.Model) int {
	if m.MaxLen == 0 && m.Parent != "" {
		m, _ = r.Serves(m.Parent)
	}
	return m.MaxLen
}

// Rank returns the veto for rank index of a replica that passed Replica.
func (f *Filter) Rank(index int) decision.Veto {
	switch {
	case f.Pinned != "" && f.PinnedRank >= 0 && index != f.PinnedRank:
		return decision.VetoPinned
	case index < f.MinRank, f.MaxRank != 0 && index > max(f.MaxRank, 0):
		return decision.VetoRank
	}
	return decision.VetoNone
}
