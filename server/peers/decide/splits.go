package decide

import (
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// prefillSuffix distinguishes the booking of the rank that computes a prompt for another one from the other one's.
const prefillSuffix = "+prefill"

// mostWays bounds the ways of a decision.
const mostWays = 16

// prefillOf describes the rank that computes the prompt for another one.
func prefillOf(cand *decision.Candidate) *peerv1.Chosen {
	return &peerv1.Chosen{
		ReplicaId: string(cand.Replica), Rank: uint32(cand.Rank), Feed: feedCode(cand.Feed), BlockSize: cand.BlockSize,
		GpuTokens: cand.GPU, CpuTokens: cand.CPU, DiskTokens: cand.Disk, UncachedTokens: cand.Uncached,
		PrefillS: cand.Prefill, BacklogS: cand.Backlog, TtftS: cand.TTFT, TpotS: cand.TPOT, Cost: cand.Cost, Requests: cand.Requests, Waiting: cand.Waiting,
		FullStepS: cand.FullStep, StepS: cand.StepTime, Slowdown: cand.Slowdown, Adapter: adapterCost(&cand.Adapting),
	}
}

// candidateOf reads the chosen rank, which serves at slot.
func candidateOf(in *peerv1.Chosen, slot replica.Slot, prompt uint32) decision.Candidate {
	return decision.Candidate{
		RankID:   decision.RankID{Replica: replica.ID(in.GetReplicaId()), Rank: uint16(in.GetRank()), Slot: slot},
		Overlap:  overlapOf(in, prompt),
		Forecast: forecastOf(in, prompt),
		Cost:     finite(in.GetCost()),
		RankLoad: decision.RankLoad{Requests: in.GetRequests(), Waiting: in.GetWaiting(), EngineWaiting: -1, KVUsage: -1},
		Adapting: adaptingOf(in.GetAdapter()),
		Pace:     decision.Pace{FullStep: amount(in.GetFullStepS()), StepTime: amount(in.GetStepS()), Slowdown: amount(in.GetSlowdown())},
	}
}

// waysOf writes the ways of a decision.
func waysOf(ways []decision.Way, now time.Time) []*peerv1.Way {
	var out []*peerv1.Way
	for i := range ways[:min(len(ways), mostWays)] {
		w := &ways[i]
		one := &peerv1.Way{
			PrefillReplicaId: string(w.Prefill.Replica), PrefillRank: uint32(w.Prefill.Rank), DecodeReplicaId: string(w.Decode.Replica), DecodeRank: uint32(w.Decode.Rank),
			HeldTokens: w.Held, MovedTokens: w.Moved, Cost: w.Cost, TtftS: w.TTFT, QueueS: w.Queue, ComputeS: w.Compute, TransferS: w.Transfer, Copy: w.Copy,
		}
		if !w.Began.IsZero() {
			one.Begun = span(now.Sub(w.Began))
		}
		if !w.Ended.IsZero() {
			one.Ended = span(max(time.Nanosecond, now.Sub(w.Ended)))
		}
		out = append(out, one)
	}
	return out
}

// rankOf finds a rank that a peer names.
func rankOf(replicas []*replica.Replica, id string, rank uint32) (decision.RankID, bool) {
	slot, ok := slotOf(replicas, replica.ID(id), int(rank))
	return decision.RankID{Replica: replica.ID(id), Rank: uint16(rank), Slot: slot}, ok
}

// wayOf reads a way; false when this router does not know its ranks.
func wayOf(in *peerv1.Way, replicas []*replica.Replica, prompt uint32, now time.Time) (w decision.Way, ok bool) {
	if w.Decode, ok = rankOf(replicas, in.GetDecodeReplicaId(), in.GetDecodeRank()); !ok {
		return w, false
	}
	if w.Prefill, ok = rankOf(replicas, in.GetPrefillReplicaId(), in.GetPrefillRank()); !ok && in.GetPrefillReplicaId() != "" {
		return w, false
	}
	w.Held, w.Moved, w.Cost, w.TTFT = min(in.GetHeldTokens(), prompt), min(in.GetMovedTokens(), prompt), finite(in.GetCost()), amount(in.GetTtftS())
	w.Queue, w.Compute, w.Transfer, w.Copy = amount(in.GetQueueS()), amount(in.GetComputeS()), amount(in.GetTransferS()), in.GetCopy()
	if !w.Copy {
		return w, in.GetPrefillReplicaId() != ""
	}
	w.Began = now.Add(-max(0, min(in.GetBegun().AsDuration(), maxSpan)))
	if in.GetEnded() != nil {
		w.Ended = now.Add(-max(0, min(in.GetEnded().AsDuration(), maxSpan)))
	}
	return w, true
}

// readWays adds the ways of a peer's choice to its decision d, and the rank that computes the prompt, where another one writes the answer. It returns false
// when this router cannot serve the request that way.
func readWays(d *decision.Decision, in *peerv1.Chosen, replicas []*replica.Replica) bool {
	prompt := uint32(max(0, d.PromptTokens))
	for i, one := range in.GetWays() {
		w, ok := wayOf(one, replicas, prompt, d.At)
		if !ok && i == 0 {
			return false
		}
		if ok && len(d.Ways) < mostWays {
			d.Ways = append(d.Ways, w)
		}
	}
	w, lead := d.Split(), in.GetPrefill()
	switch {
	case w == nil && lead == nil:
		return true
	case w == nil, lead == nil, string(w.Prefill.Replica) != lead.GetReplicaId(), uint32(w.Prefill.Rank) != lead.GetRank(), w.Decode.Slot != d.Pick().Slot:
		return false
	}
	d.Candidates = append(d.Candidates, candidateOf(lead, w.Prefill.Slot, prompt))
	return true
}

// lead is the booking of the rank that computes the prompt of w's request, for the booking b of the rank that answers.
func (b *booking) lead(w *Waiting) *booking {
	made := newBooking(b.frontend, w, b.number+1)
	made.suffix, made.asked.session, made.asked.expected, made.asked.unstreamed = prefillSuffix, "", 1, false
	return made
}

// Sent implements ask.MoveReports.
func (b *booking) Sent() {
	f := b.frontend
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.sent = true; b.at != "" && !b.ended {
		f.params.Fleet.SendEvent(b.at, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Sent{Sent: b.number}})
	}
}

// ownerOf is the replica of a rank in a request's pool.
func ownerOf(req *chooser.Request, id replica.ID) *replica.Replica {
	for _, r := range req.Replicas {
		if r.ID == id {
			return r
		}
	}
	return nil
}
