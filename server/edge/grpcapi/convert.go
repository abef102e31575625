package grpcapi

import (
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const milli = 1000 // seconds to milliseconds

func decisionProto(d *decision.Decision, o *decision.Outcome) *kvpilotv1.Decision {
	out := &kvpilotv1.Decision{
		DecisionId: d.ID, Attempt: uint32(d.Attempt), RequestId: d.RequestID, Time: timestamppb.New(d.At),
		Model: d.Model, Adapter: d.Adapter, Policy: string(d.Policy), Reason: string(d.Reason),
		PromptTokens: uint32(d.PromptTokens), Estimated: d.Estimated, ExpectedOutputTokens: uint32(max(d.ExpectedOutput, 0)),
		DryRun: d.DryRun, Margin: d.Margin, Params: paramsProto(&d.Params), Load: d.Load, Omega: d.Omega,
		Held: durationpb.New(d.Held), Took: durationpb.New(d.Took), Tries: uint32(d.Tries), Seed: d.Seed,
		TraceId: d.TraceID, SpanId: d.SpanID, Tenant: d.Tenant,
		Candidates: make([]*kvpilotv1.Candidate, len(d.Candidates)),
	}
	scale := 1.0
	if d.Policy == decision.PredictedTTFT {
		scale = milli
	}
	out.Margin *= scale
	if pick := d.Pick(); pick != nil {
		out.ReplicaId, out.Rank = string(pick.Replica), uint32(pick.Rank)
	}
	for i := range d.Candidates {
		out.Candidates[i] = candidateProto(&d.Candidates[i], scale)
	}
	if s := d.Shadow; s != nil {
		out.Shadow = &kvpilotv1.Shadow{Policy: string(s.Policy), ReplicaId: string(s.Replica), Rank: uint32(s.Rank), Agrees: s.Agrees, RegretMs: s.Regret * milli}
	}
	if o != nil {
		out.Outcome = outcomeProto(o)
	}
	return out
}

func candidateProto(c *decision.Candidate, scale float64) *kvpilotv1.Candidate {
	out := &kvpilotv1.Candidate{
		ReplicaId: string(c.Replica), Rank: uint32(c.Rank), Veto: c.Veto.String(), Overlap: overlapProto(c),
		Feed: feedProto(c.Feed), BlockSize: c.BlockSize, Session: c.Session,
		Requests: c.Requests, Waiting: c.Waiting, QueuedTokens: c.QueuedTokens, DecodeBlocks: c.DecodeBlocks, Blocks: c.Blocks,
		BacklogMs: c.Backlog * milli, SilentMs: c.Silent * milli, UncachedTokens: c.Uncached, PrefillMs: c.Prefill * milli, TtftMs: c.TTFT * milli, Cost: c.Cost * scale,
	}
	if c.EngineWaiting >= 0 {
		n := uint32(c.EngineWaiting)
		out.EngineWaiting = &n
	}
	if c.KVUsage >= 0 {
		share := float64(c.KVUsage)
		out.KvUsage = &share
	}
	return out
}

func overlapProto(c *decision.Candidate) *kvpilotv1.Overlap {
	return &kvpilotv1.Overlap{GpuTokens: c.GPU, CpuTokens: c.CPU, DiskTokens: c.Disk}
}

func outcomeProto(o *decision.Outcome) *kvpilotv1.Outcome {
	out := &kvpilotv1.Outcome{
		End: endProto(o.End), ReplicaId: string(o.Replica), Rank: uint32(o.Rank),
		PredictedTtft: durationpb.New(o.Predicted), Duration: durationpb.New(o.Duration),
		PredictedCachedTokens: uint32(max(o.PredictedCached, 0)),
	}
	if !o.Counted { // the engine's own counts, or none
		out.PromptTokens, out.OutputTokens, out.CachedTokens = known(o.PromptTokens), known(o.OutputTokens), known(o.CachedTokens)
	}
	if o.TTFT > 0 {
		out.Ttft = durationpb.New(o.TTFT)
	}
	return out
}

// known leaves out a count that the engine did not give.
func known(n int) *uint32 {
	if n < 0 {
		return nil
	}
	v := uint32(n)
	return &v
}

func endProto(e decision.End) kvpilotv1.End {
	switch e {
	case decision.EndCompleted:
		return kvpilotv1.End_END_COMPLETED
	case decision.EndCanceled:
		return kvpilotv1.End_END_CANCELED
	case decision.EndRejected:
		return kvpilotv1.End_END_REJECTED
	case decision.EndFailed:
		return kvpilotv1.End_END_FAILED
	case decision.EndMoved:
		return kvpilotv1.End_END_MOVED
	case decision.EndExpired:
		return kvpilotv1.End_END_EXPIRED
	case decision.EndRemoved:
		return kvpilotv1.End_END_REMOVED
	case decision.EndResumed:
		return kvpilotv1.End_END_RESUMED
	}
	return kvpilotv1.End_END_UNSPECIFIED
}

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

// replicaProto is a replica for callers; its key is never shown.
func (a *API) replicaProto(r *replica.Replica) *kvpilotv1.Replica {
	out := &kvpilotv1.Replica{
		ReplicaId: string(r.ID), Url: r.URL, State: stateProto(r.State), Since: timestamppb.New(r.Since), Life: r.Life,
		Labels: r.Labels, Version: r.Version, RustFrontend: r.RustFrontend,
		BlockSize: uint32(max(r.BlockSize, 0)), Blocks: uint32(max(r.Blocks, 0)), MaxBatchedTokens: uint32(max(r.MaxBatchedTokens, 0)),
		LastError: a.Registry.Snapshot().Details(r.ID).LastError,
	}
	for i, slot := range r.Slots {
		rank := &kvpilotv1.ReplicaRank{Rank: uint32(i), Feed: feedProto(a.Feed(slot))}
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
