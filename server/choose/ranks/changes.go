package ranks

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// RankAdded is called by the registry before a snapshot shows a rank.
func (r *Ranks) RankAdded(slot replica.Slot, of *replica.Replica, rank int) {
	r.Book.AddRank(slot)
	r.followers.Chooser.AddRank(slot, of, rank)
	if err := r.Index.AddRank(slot, indexed(of, rank)); err != nil {
		r.log.Error("a rank is not indexed", "replica", string(of.ID), "rank", rank, "error", err)
	}
	r.Index.SetStore(slot, of.Labels[replica.LabelStore])
	if hasEvents(of, rank) {
		r.Events.Add(slot, of.Events[rank], nameOf(of, rank))
		r.Index.Claim(slot)
	} else {
		r.Index.SetState(slot, kvblock.FeedNone)
	}
	r.Stats.Add(slot, of, rank)
}

func indexed(r *replica.Replica, rank int) kvindex.RankInfo {
	return kvindex.RankInfo{Rank: replica.Rank{Replica: r.ID, Index: rank}, BlockSize: r.BlockSize, Capacity: r.Blocks}
}

func hasEvents(r *replica.Replica, rank int) bool {
	return rank < len(r.Events) && r.Events[rank].Endpoint != ""
}

// RankRemoved is called by the registry after a snapshot stopped showing a rank.
func (r *Ranks) RankRemoved(slot replica.Slot) {
	r.Stats.Remove(slot)
	r.Events.Remove(slot)
	r.Index.RemoveRank(slot)
	r.followers.Chooser.RemoveRank(slot)
	if lost := r.Book.RemoveRank(slot); lost > 0 {
		r.log.Warn("requests were in flight on a rank that is gone", "slot", slot, "requests", lost)
	}
}

// ReplicaRestarted drops the beliefs about a former engine process. Ranks with events learn of it
// from their sequence numbers too; the first notice counts.
func (r *Ranks) ReplicaRestarted(of *replica.Replica, began time.Time) {
	for rank, slot := range of.Slots {
		r.Book.Forget(slot, began)
		if !hasEvents(of, rank) {
			r.Index.Reset(slot)
		}
		r.Events.Restarted(slot, began)
	}
}

// FleetChanged follows each new view of the fleet.
func (r *Ranks) FleetChanged(s *registry.Snapshot) {
	for _, of := range s.Replicas {
		r.Stats.Renew(of)
		if of.State == replica.StateReady && time.Since(of.Since) < time.Second && len(of.Slots) > 0 {
			r.Stats.Ask(of.Slots[0]) // it may have been down, and looked at rarely
		}
		for rank, slot := range of.Slots {
			r.Index.UpdateRank(slot, indexed(of, rank))
			r.Index.SetStore(slot, of.Labels[replica.LabelStore])
		}
	}
	r.followers.Breaker.Retain(func(id replica.ID) bool { _, known := s.Replica(id); return known })
	r.followers.Chooser.Changed()
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// Drained passes on that a caller has drained a replica, or undrained it.
func (r *Ranks) Drained(id replica.ID, drain *registry.Drain) {
	if peers := r.followers.Peers; peers != nil {
		peers.Drained(id, drain)
	}
}

// Registered passes on that a caller has registered a replica.
func (r *Ranks) Registered(spec registry.Spec, left time.Duration) {
	if peers := r.followers.Peers; peers != nil {
		peers.Registered(spec, left)
	}
}

// Deregistered passes on that a caller has withdrawn a registration.
func (r *Ranks) Deregistered(id replica.ID) {
	if peers := r.followers.Peers; peers != nil {
		peers.Deregistered(id)
	}
}
