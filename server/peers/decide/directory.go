package decide

import (
	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
)

// directoryOf writes the answer of a directory; nil for none.
func directoryOf(a *directory.Answer, rankOf func(replica.Slot) (replica.Rank, bool)) *peerv1.DirectoryAnswer {
	if a == nil {
		return nil
	}
	out := &peerv1.DirectoryAnswer{Source: text(a.Source), Result: text(a.Result), Took: span(a.Took)}
	for i := range a.Held {
		h := &a.Held[i]
		if r, ok := rankOf(h.Slot); ok {
			out.Ranks = append(out.Ranks, &peerv1.DirectoryRank{
				ReplicaId: text(r.Replica), Rank: uint32(r.Index), From: uint32(max(0, h.From)), Host: uint32(max(0, h.Host)), Store: uint32(max(0, h.Store)),
			})
		}
	}
	return out
}

// readDirectory reads the answer of a directory. replicas is the pool here; ranks that it lacks are left out.
func readDirectory(in *peerv1.DirectoryAnswer, replicas []*replica.Replica) *directory.Answer {
	if in == nil {
		return nil
	}
	a := &directory.Answer{Lookup: decision.Lookup{Source: clip(in.GetSource()), Result: clip(in.GetResult()), Took: max(0, min(in.GetTook().AsDuration(), maxSpan))}}
	for _, r := range in.GetRanks() {
		if slot, ok := slotOf(replicas, replica.ID(r.GetReplicaId()), int(r.GetRank())); ok {
			a.Held = append(a.Held, directory.Held{Slot: slot, From: tokensOf(r.GetFrom()), Host: tokensOf(r.GetHost()), Store: tokensOf(r.GetStore())})
		}
	}
	return a
}
