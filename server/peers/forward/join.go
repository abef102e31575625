package forward

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// attempt names one record among the records of all routers.
type attempt struct {
	id     string
	number uint32
}

// Join makes one record of the records that several routers have of an attempt, and sorts them by request and attempt, or newest first.
// The router that decided has all candidates; the router that asked it knows the trace, the outcome, and how long the request waited.
func Join(newestFirst bool, lists ...[]*kvpilotv1.Decision) []*kvpilotv1.Decision {
	var out []*kvpilotv1.Decision
	at := map[attempt]int{}
	for _, list := range lists {
		for _, d := range list {
			key := attempt{d.GetDecisionId(), d.GetAttempt()}
			if i, known := at[key]; known {
				out[i] = joined(out[i], d)
				continue
			}
			at[key] = len(out)
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b *kvpilotv1.Decision) int {
		if newestFirst {
			return b.GetTime().AsTime().Compare(a.GetTime().AsTime())
		}
		if a.GetDecisionId() == b.GetDecisionId() {
			return cmp.Compare(a.GetAttempt(), b.GetAttempt())
		}
		return a.GetTime().AsTime().Compare(b.GetTime().AsTime())
	})
	return out
}

// joined is one record of two. They are not changed.
func joined(a, b *kvpilotv1.Decision) *kvpilotv1.Decision {
	asker, decider := a, b
	if isOwn(b) && !isOwn(a) {
		asker, decider = b, a
	}
	if len(decider.GetCandidates()) < len(asker.GetCandidates()) || decider.GetReplicaId() != asker.GetReplicaId() || decider.GetRank() != asker.GetRank() {
		decider = asker // of another choice: the asker's counted
	}
	out, _ := proto.Clone(decider).(*kvpilotv1.Decision)
	out.Time, out.RequestId, out.Tenant = asker.GetTime(), asker.GetRequestId(), asker.GetTenant()
	out.Outcome = cmp.Or(asker.GetOutcome(), decider.GetOutcome())
	out.DecidedBy, out.Alone = asker.GetDecidedBy(), asker.GetAlone()
	out.AskedBy = cmp.Or(asker.GetAskedBy(), decider.GetAskedBy())
	if asker.GetTraceId() != "" {
		out.TraceId, out.SpanId = asker.GetTraceId(), asker.GetSpanId()
	}
	return out
}

// isOwn reports whether a record comes from the router which made the decision's id.
func isOwn(d *kvpilotv1.Decision) bool { return d.GetAskedBy() == "" }
