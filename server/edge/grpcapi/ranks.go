package grpcapi

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

// Ranks are the parts that follow replicas and their ranks. All are required.
type Ranks struct {
	Registry *registry.Registry
	Book     *load.Book
	Engines  Engines
	Index    Index
	Feeds    Feeds
	Breakers Breakers
}

// Engines are the engines' reports; *enginestats.Poller is one.
type Engines interface {
	// Stats returns the last report of a rank's engine.
	Stats(slot replica.Slot) (enginestats.Stats, bool)
}

// Index is the router's index of the ranks' caches; *kvindex.Index is one.
type Index interface {
	Stats() kvindex.Stats
	// State returns the state of a rank's event feed.
	State(slot replica.Slot) kvblock.FeedState
}

// Feeds are the event feeds; *kvevents.Plane is one.
type Feeds interface {
	Statuses() []kvevents.Status
}

// Breakers stop requests to replicas that fail; *breaker.Breaker does.
type Breakers interface {
	State(id replica.ID) breaker.State
}

// caches is the router's view of the ranks' caches at one moment.
type caches struct {
	held  map[replica.Slot]kvindex.RankStats
	feeds map[replica.Slot]kvevents.Status
}

func (k *Ranks) caches() caches {
	c := caches{map[replica.Slot]kvindex.RankStats{}, map[replica.Slot]kvevents.Status{}}
	for _, r := range k.Index.Stats().Ranks {
		c.held[r.Slot] = r
	}
	for _, f := range k.Feeds.Statuses() {
		c.feeds[f.Slot] = f
	}
	return c
}

// replicaProto is a replica for callers; its key is never shown.
func (k *Ranks) replicaProto(r *replica.Replica, c caches) *kvpilotv1.Replica {
	details := k.Registry.Snapshot().Details(r.ID)
	out := &kvpilotv1.Replica{
		ReplicaId: string(r.ID), Url: r.URL, State: stateProto(r.State), Since: timestamppb.New(r.Since), Life: r.Life,
		Labels: r.Labels, Version: r.Version, RustFrontend: r.RustFrontend,
		BlockSize: uint32(max(r.BlockSize, 0)), Blocks: uint32(max(r.Blocks, 0)), MaxBatchedTokens: uint32(max(r.MaxBatchedTokens, 0)),
		LastError: details.LastError, Drained: details.Drained, Drain: k.drainProto(r, details.Drain), Breaker: breakerProto(k.Breakers.State(r.ID)),
	}
	for i, slot := range r.Slots {
		held, feed := c.held[slot], c.feeds[slot]
		rank := &kvpilotv1.ReplicaRank{
			Rank: uint32(i), Feed: feedProto(k.Index.State(slot)), FeedError: feed.LastError, FeedLag: durationpb.New(feed.Lag), Gaps: feed.Gaps, Resets: feed.Resets,
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

// drainProto is the drain of a replica for callers; nil when it does not drain. The requests in flight are the ones known to this router.
func (k *Ranks) drainProto(r *replica.Replica, d *registry.Drain) *kvpilotv1.ReplicaDrain {
	if r.State != replica.StateDraining && len(r.DrainedRanks) == 0 {
		return nil
	}
	out := &kvpilotv1.ReplicaDrain{Since: timestamppb.New(r.Since)}
	if d != nil {
		out.Since, out.By, out.Reason, out.Move = timestamppb.New(d.Since), d.By, d.Reason, d.Move
		for _, rank := range d.Ranks {
			out.Ranks = append(out.Ranks, uint32(rank))
		}
	}
	now := time.Now()
	for rank, slot := range r.Slots {
		if len(r.DrainedRanks) > 0 && !r.IsRankDrained(rank) {
			continue
		}
		out.InFlight += uint32(k.Book.View(slot, now).InFlight)
	}
	return out
}
