package grpcapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// loads shows what is under way on each rank.
type loads struct {
	ranks  *Ranks
	rates  rates
	pools  pools
	others *others
	trail  trail
}

func (s *loads) GetLoads(ctx context.Context, in *kvpilotv1.GetLoadsRequest) (*kvpilotv1.GetLoadsResponse, error) {
	list, err := s.pools.replicasOf(in.GetModel())
	if err != nil {
		return nil, err
	}
	if err := hold(ctx, answerMemory); err != nil {
		return nil, err
	}
	s.trail.recordRead(ctx, kvpilotv1.RoutingService_GetLoads_FullMethodName, "")
	now := time.Now()
	rates := map[replica.Slot]chooser.Rate{}
	for _, rate := range s.rates.Rates() {
		rates[rate.Slot] = rate
	}
	out := &kvpilotv1.GetLoadsResponse{}
	for _, r := range list {
		if in.GetReplicaId() != "" && string(r.ID) != in.GetReplicaId() {
			continue
		}
		for rank, slot := range r.Slots {
			load := s.rankLoad(r, rank, slot, now)
			if rate, known := rates[slot]; known {
				load.Speed, load.Conduct = rateProto(rate), conductProto(rate.Conduct)
			}
			out.Ranks = append(out.Ranks, load)
		}
	}
	s.others.loadsWide(ctx, in, list, out)
	return out, nil
}

func (s *loads) rankLoad(r *replica.Replica, rank int, slot replica.Slot, now time.Time) *kvpilotv1.RankLoad {
	v := s.ranks.Book.View(slot, now)
	out := &kvpilotv1.RankLoad{
		ReplicaId: string(r.ID), Rank: uint32(rank),
		Requests: uint32(v.InFlight), Waiting: uint32(v.Prefilling),
		QueuedTokens: uint64(max(v.PrefillTokens, 0)), DecodeBlocks: v.DecodeBlocks, Backlog: durationpb.New(v.PrefillTime),
	}
	if e, ok := s.ranks.Engines.Stats(slot); ok && !e.At.IsZero() {
		running, waiting := uint32(max(e.Running, 0)), uint32(max(e.Waiting, 0))
		out.EngineRunning, out.EngineWaiting, out.KvUsage = &running, &waiting, &e.KVUsage
		out.EngineAge = durationpb.New(now.Sub(e.At))
	}
	return out
}
