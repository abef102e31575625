package reports

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

// Reports has the engines' own reports.
type Reports interface {
	// Report sets its last argument to the report of a rank's engine as it stands at now, while prefilling of this router's requests may
	// wait there for their first token; false when there is none. Every choice reads every rank's.
	Report(slot replica.Slot, now time.Time, prefilling int, to *Report) bool
}

// Report is an engine's report about one of its ranks.
type Report struct {
	Waiting int
	// KVUsage is the share of KV blocks in use, 0 to 1; below zero when unknown.
	KVUsage float64
	// Blocks is the number of KV blocks; 0 when unknown.
	Blocks int
	// Foreign estimates how many of the engine's requests other callers sent.
	Foreign float64
	// At is when the report was made; zero when unknown. Then Queued is the engine's own count of
	// waiting requests, Uncached the prompt tokens that it did not find in its cache since it began,
	// PrefillSeconds the time that its ended requests spent in prefill, one by one, and Computed the prompt tokens that these did not
	// find in a cache; 0 when that is unknown.
	At             time.Time
	Queued         int
	Uncached       uint64
	PrefillSeconds float64
	Computed       uint64
	// Fetched counts the prompt tokens that it has read from tiers below its GPU or from other engines since it began; Fetches is set where it counts
	// them.
	Fetched uint64
	Fetches bool
	// Adapters are the LoRA adapters; nil: the engine does not say.
	Adapters *enginestats.Adapters
}

// ReportOf fills r from an engine's newest statistics; it returns false when they are stale. prefilling is the number of
// booked requests of the rank without a first token.
func ReportOf(s *enginestats.Stats, prefilling int, now time.Time, r *Report) bool {
	if !s.Fresh(now) {
		return false
	}
	*r = Report{Waiting: s.Waiting, KVUsage: s.KVUsage, Foreign: s.Foreign(now), At: s.At, Queued: s.Waiting, PrefillSeconds: s.PrefillSeconds, Computed: s.ComputedTokens, Adapters: s.Adapters, Fetched: s.FetchedTokens, Fetches: s.Fetches}
	if r.Foreign < 1 {
		// The statistics are older than the last booking: without requests of others, the requests that wait there beyond the booked ones have left
		// the queue since.
		r.Waiting = min(r.Waiting, prefilling)
	}
	// Hits are on the GPU. Of the other tokens, the fetched ones were not computed either.
	if had := s.HitTokens + s.FetchedTokens; s.QueryTokens > had {
		r.Uncached = s.QueryTokens - had
	}
	return true
}
