package grpcapi

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
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

// caches is what the router knows of the ranks' caches at one moment.
type caches struct {
	held  map[replica.Slot]kvindex.RankStats
	feeds map[replica.Slot]kvevents.Status
}

func (a *API) caches() caches {
	c := caches{map[replica.Slot]kvindex.RankStats{}, map[replica.Slot]kvevents.Status{}}
	for _, r := range a.Index().Ranks {
		c.held[r.Slot] = r
	}
	for _, f := range a.Feeds() {
		c.feeds[f.Slot] = f
	}
	return c
}

// replicaProto is a replica for callers; its key is never shown.
func (a *API) replicaProto(r *replica.Replica, c caches) *kvpilotv1.Replica {
	details := a.Registry.Snapshot().Details(r.ID)
	out := &kvpilotv1.Replica{
		ReplicaId: string(r.ID), Url: r.URL, State: stateProto(r.State), Since: timestamppb.New(r.Since), Life: r.Life,
		Labels: r.Labels, Version: r.Version, RustFrontend: r.RustFrontend,
		BlockSize: uint32(max(r.BlockSize, 0)), Blocks: uint32(max(r.Blocks, 0)), MaxBatchedTokens: uint32(max(r.MaxBatchedTokens, 0)),
		LastError: details.LastError, Drained: details.Drained, Drain: a.drainProto(r, details.Drain), Breaker: breakerProto(a.Breaker(r.ID)),
	}
	for i, slot := range r.Slots {
		held, feed := c.held[slot], c.feeds[slot]
		rank := &kvpilotv1.ReplicaRank{
			Rank: uint32(i), Feed: feedProto(a.Feed(slot)), FeedError: feed.LastError, FeedLagMs: millis(feed.Lag), Gaps: feed.Gaps, Resets: feed.Resets,
			KnownBlocks:      uint32(held.Blocks[kvblock.TierGPU] + held.Guessed),
			KnownLowerBlocks: uint32(held.Blocks[kvblock.TierCPU] + held.Blocks[kvblock.TierDisk]),
		}
		if i < len(r.Events) {
			rank.EventsEndpoint, rank.ReplayEndpoint = r.Events[i].Endpoint, r.Events[i].Replay
		}
		out.Ranks = append(out.Ranks, rank)
	}
	for _, m := range r.Models {
		out.Models = append(out.Models, &kvpilotv1.ReplicaModel{Id: m.ID, Parent: m.Parent, MaxModelLen: uint32(max(m.MaxLen, 0))})
	}
	return out
}
