package grpcapi

import (
	"encoding/json"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/jsonform"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
)

const milli = 1000 // seconds to milliseconds

// maxSeconds bounds times: longer ones are as good as never.
const maxSeconds = 1e9

// seconds is a time of the decision, whose zero is no time.
func seconds(s float64) *durationpb.Duration {
	if s == 0 || math.IsNaN(s) {
		return nil
	}
	return durationpb.New(time.Duration(math.Round(min(max(s, -maxSeconds), maxSeconds) * float64(time.Second))))
}

// DecisionLine is an entry of the decision log as a line of its file: the contract's Decision.
func DecisionLine(e decisionlog.Entry) json.Marshaler { return decisionLine(e) }

type decisionLine decisionlog.Entry

// MarshalJSON implements json.Marshaler.
func (e decisionLine) MarshalJSON() ([]byte, error) {
	return jsonform.Marshal(decisionProto(e.Decision, e.Outcome, false))
}

func decisionProto(d *decision.Decision, o *decision.Outcome, onlyChosen bool) *kvpilotv1.Decision {
	out := &kvpilotv1.Decision{
		DecisionId: d.ID, Attempt: uint32(d.Attempt), RequestId: d.RequestID, Time: timestamppb.New(d.At),
		Model: d.Model, Adapter: d.Adapter, Policy: string(d.Policy), Reason: reasonProto(d.Reason),
		Objective: objectiveProto(d.Objective), TargetTtft: limitProto(d.Targets.TTFT), TargetTpot: limitProto(d.Targets.TPOT),
		PromptTokens: uint32(d.PromptTokens), Estimated: d.Estimated, ExpectedOutputTokens: uint32(max(d.ExpectedOutput, 0)),
		Keyless: d.Keyless, Pinned: d.Pinned, TooLong: d.TooLong, PromptChars: uint32(max(d.PromptChars, 0)),
		DryRun: d.DryRun, Margin: d.Margin, Params: selector.Numbers(&d.Params), Load: d.Load, Omega: d.Omega, PrefillRate: d.Rate,
		Waited: durationpb.New(d.Waited), Held: durationpb.New(d.Held), Took: durationpb.New(d.Took), Scored: durationpb.New(d.Scored),
		Tries: uint32(d.Tries), Seed: d.Seed, Cursor: d.Cursor, TraceId: d.TraceID, SpanId: d.SpanID, Tenant: d.Tenant,
		DecidedBy: d.DecidedBy, AskedBy: d.AskedBy, Alone: aloneProto(d.Alone), Others: uint32(max(d.Others, 0)), VetoedOthers: uint32(max(d.VetoedOthers, 0)),
		Returning: d.Returning, MemoryWait: memoryWaitProto(d.Memory),
	}
	if s := d.Side; s.Name != "" {
		out.Split = &kvpilotv1.SplitChoice{Model: s.Model, Side: s.Name, InsteadOf: s.InsteadOf}
	}
	if l := d.Lookup; l != nil {
		out.Directory = &kvpilotv1.DirectoryLookup{Source: l.Source, Result: l.Result, Took: durationpb.New(l.Took)}
	}
	scale := 1.0
	if d.Policy == decision.PredictedTTFT {
		scale = milli
	}
	out.Margin *= scale
	pick := d.Pick()
	if pick != nil {
		out.ReplicaId, out.Rank = string(pick.Replica), uint32(pick.Rank)
	}
	switch {
	case !onlyChosen:
		list := d.List()
		for i := range list {
			out.Candidates = append(out.Candidates, candidateProto(&list[i], scale))
		}
	case pick != nil:
		out.Candidates = append(out.Candidates, candidateProto(pick, scale))
	}
	for i := range d.Ways {
		out.Ways = append(out.Ways, wayProto(&d.Ways[i]))
	}
	if s := d.Shadow; s != nil {
		out.Shadow = &kvpilotv1.Shadow{Policy: string(s.Policy), ReplicaId: string(s.Replica), Rank: uint32(s.Rank), Agrees: s.Agrees, Regret: seconds(s.Regret)}
	}
	if o != nil {
		out.Outcome = outcomeProto(o)
	}
	return out
}

func wayProto(w *decision.Way) *kvpilotv1.Way {
	return &kvpilotv1.Way{
		Kind: w.Kind(), PrefillReplicaId: string(w.Prefill.Replica), PrefillRank: uint32(w.Prefill.Rank),
		DecodeReplicaId: string(w.Decode.Replica), DecodeRank: uint32(w.Decode.Rank), HeldTokens: w.Held, MovedTokens: w.Moved,
		Cost: w.Cost * milli, Ttft: seconds(w.TTFT), Queue: seconds(w.Queue), Compute: seconds(w.Compute), Transfer: seconds(w.Transfer),
	}
}

// memoryWaitProto is the wait of a program's call for memory; nil for none.
func memoryWaitProto(w *decision.MemoryWait) *kvpilotv1.MemoryWait {
	if w == nil {
		return nil
	}
	return &kvpilotv1.MemoryWait{
		ProgramId: programID(w.Program), NeededTokens: uint64(max(0, w.Tokens)), FreeTokens: uint64(max(0, w.Free)), ProgramsBefore: uint32(max(0, w.Before)),
		Expected: limitProto(w.Expected), Waited: durationpb.New(w.Waited),
	}
}

// limitProto leaves out a limit that is not set.
func limitProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func candidateProto(c *decision.Candidate, scale float64) *kvpilotv1.Candidate {
	out := &kvpilotv1.Candidate{
		ReplicaId: string(c.Replica), Rank: uint32(c.Rank), Veto: vetoProto(c.Veto), Overlap: overlapProto(&c.Overlap),
		Feed: feedProto(c.Feed), BlockSize: c.BlockSize, Session: c.Session,
		Requests: c.Requests, Waiting: c.Waiting, QueuedTokens: c.QueuedTokens, DecodeBlocks: c.DecodeBlocks, Blocks: c.Blocks,
		Backlog: seconds(c.Backlog), Silent: seconds(c.Silent), UncachedTokens: c.Uncached, Prefill: seconds(c.Prefill), Ttft: seconds(c.TTFT), Cost: c.Cost * scale,
		Slowdown: c.Slowdown, Planned: seconds(c.Planned), FullStep: seconds(c.FullStep), Decode: seconds(c.Decode), Crowding: seconds(c.Crowding),
		Tpot: seconds(c.TPOT), Late: c.Late, ReturnsPerSecond: c.Returns, Saved: seconds(c.Saved), Residual: seconds(c.Residual),
		Chars: c.Chars, HeldChars: c.Held, Place: c.Place, Drag: seconds(c.Drag),
		Speed: paceProto(&c.Pace), Adapter: adapterProto(&c.Adapting), Load: seconds(c.Load), LoadableTokens: c.Loadable, NamedTokens: c.Named,
	}
	if s := conduct.Suspicion(c.Suspicions); s != 0 {
		out.Conduct = &kvpilotv1.RankConduct{Suspicions: suspicionsProto(s), Slowness: float64(c.Slowness), OverlapTrust: float64(c.Trust)}
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

// adapterProto is the request's LoRA adapter on a rank; nil for none.
func adapterProto(a *decision.Adapting) *kvpilotv1.AdapterCost {
	if a.Adapter == decision.AdapterNone {
		return nil
	}
	return &kvpilotv1.AdapterCost{
		State: adapterStates[a.Adapter], Wait: seconds(float64(a.AdapterWait)), Load: seconds(float64(a.AdapterLoad)), Loss: seconds(float64(a.AdapterLoss)),
	}
}

// adapterStates are the contract's names of the states.
var adapterStates = [...]kvpilotv1.AdapterState{
	decision.AdapterNone: kvpilotv1.AdapterState_ADAPTER_STATE_UNSPECIFIED, decision.AdapterRunning: kvpilotv1.AdapterState_ADAPTER_STATE_RUNNING,
	decision.AdapterResident: kvpilotv1.AdapterState_ADAPTER_STATE_RESIDENT, decision.AdapterAbsent: kvpilotv1.AdapterState_ADAPTER_STATE_ABSENT,
	decision.AdapterFull: kvpilotv1.AdapterState_ADAPTER_STATE_FULL,
}

func paceProto(p *decision.Pace) *kvpilotv1.RankSpeed {
	out := &kvpilotv1.RankSpeed{
		BendTokens: p.Bend, Step: seconds(p.StepTime), Overhead: seconds(p.Overhead), Spread: p.Spread, Source: sourceProto(p.Speed), Busy: p.Busy,
	}
	if p.TokenTime > 0 {
		out.TokensPerSecond = 1 / p.TokenTime
	}
	return out
}

func conductProto(r conduct.Record) *kvpilotv1.RankConduct {
	return &kvpilotv1.RankConduct{
		Suspicions: suspicionsProto(r.Suspicions), Slowness: r.Slowness, TokenTime: seconds(r.Token), EmptyShare: r.EmptyShare, OverlapTrust: r.Trust,
	}
}

func rateProto(r chooser.Rate) *kvpilotv1.RankSpeed {
	return &kvpilotv1.RankSpeed{
		TokensPerSecond: r.TokensPerSecond, BendTokens: r.Bend, Step: seconds(r.StepTime), Overhead: seconds(r.Overhead),
		Spread: r.Spread, Source: sourceProto(r.Source), Busy: r.Busy, Samples: uint32(r.Samples), PredictionRatio: r.Error,
	}
}

func overlapProto(o *decision.Overlap) *kvpilotv1.Overlap {
	return &kvpilotv1.Overlap{GpuTokens: o.GPU, CpuTokens: o.CPU, DiskTokens: o.Disk}
}

func outcomeProto(o *decision.Outcome) *kvpilotv1.Outcome {
	out := &kvpilotv1.Outcome{
		End: endProto(o.End), ReplicaId: string(o.Replica), Rank: uint32(o.Rank),
		PredictedTtft: durationpb.New(o.Predicted), Duration: durationpb.New(o.Duration),
		PredictedCachedTokens: uint32(max(o.PredictedCached, 0)),
	}
	if !o.Counted { // the engine's own counts, or none
		out.PromptTokens, out.OutputTokens, out.CachedTokens = countProto(o.PromptTokens), countProto(o.OutputTokens), countProto(o.CachedTokens)
	} else {
		out.CountedOutputTokens = countProto(o.OutputTokens)
	}
	if o.TTFT > 0 {
		out.Ttft = durationpb.New(o.TTFT)
	}
	return out
}

// countProto leaves out a count that the engine did not give.
func countProto(n int) *uint32 {
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
	case decision.EndUnserved:
		return kvpilotv1.End_END_UNSERVED
	case decision.EndHandedOver:
		return kvpilotv1.End_END_HANDED_OVER
	case decision.EndPoisoned:
		return kvpilotv1.End_END_POISONED
	}
	return kvpilotv1.End_END_UNSPECIFIED
}

// endOf is the end that in names, of an unknown name one that no decision has.
func endOf(in kvpilotv1.End) decision.End {
	for e := decision.EndCompleted; endProto(e) != kvpilotv1.End_END_UNSPECIFIED; e++ {
		if endProto(e) == in {
			return e
		}
	}
	return ^decision.End(0)
}
