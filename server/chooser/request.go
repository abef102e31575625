package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/replica"
)

// Request is what a choice is made for. Slices and functions are only read, and only until
// Choose returns.
type Request struct {
	// ID names the reservation; it must be unique among requests in flight. Attempt counts its
	// tries from zero: a retry on another replica is the same ID with the next attempt.
	ID      string
	Attempt int
	// RequestID is the client's name for the request, for the record; it need not be unique.
	RequestID string
	// TraceID and SpanID name the span in which the choice is made, for the record.
	TraceID, SpanID string
	// Model is the name the client used (policies are configured by it), Served the name the
	// replicas know (empty: the same), Adapter the LoRA adapter's name or "".
	Model   string
	Served  string
	Adapter string
	// Replicas is the pool, in any state; those that may not serve are vetoed with a reason.
	Replicas []*replica.Replica

	// PromptTokens is the prompt's length in tokens; set Estimated when it is a guess.
	PromptTokens int
	Estimated    bool
	// Hashes returns the prompt's block hashes for a block size; nil when there are no token ids.
	// It may be called again, later and with other sizes, until Choose returns.
	Hashes func(blockSize int) []blockhash.Hash
	// Text is the prompt as text, the key of prefix-affinity; empty when there is none.
	Text string
	// Session and Tenant are the caller's own names; empty for none.
	Session string
	Tenant  string
	// Priority orders the hold queue: higher goes first, 0 is the default.
	Priority int
	// ExpectedOutput is max_completion_tokens or max_tokens; 0 when unknown.
	ExpectedOutput int
	// Unstreamed says that the first token cannot be seen (a plain JSON answer), so the request
	// counts as prefilled when that was predicted.
	Unstreamed bool
	// Bytes is the memory that the request holds while it waits (its body), for the queue's bound.
	Bytes int

	// Yield, when set, allows a much shorter request to go first while this one has no first token: it
	// is called at most once per choice, by any goroutine and under locks, so it must only signal. The
	// caller then takes the request back from the engine, ends the choice with EndYielded and, once
	// its Behind is closed, asks again as the next Attempt and with Resumes set to that choice.
	Yield   func()
	Resumes *Choice

	// Exclude names replicas that must not be tried (again).
	Exclude []replica.ID
	Options Options
	// Lease, above zero, lets the reservation expire when nobody reports on it for that long;
	// for callers outside this process. Zero ties it to the Choice alone.
	Lease time.Duration
	// DryRun decides and books nothing; it never waits.
	DryRun bool
	// NoQueue never waits: it takes the best rank now.
	NoQueue bool
}

// Options are what a request may ask of the choice. The zero value asks nothing.
type Options struct {
	// Policy overrides the model's policy; empty keeps it.
	Policy decision.Policy
	// Weights overrides the policy's numbers by their JSON names in decision.Params.
	Weights map[string]float64
	// Allowed, when not empty, names the only replicas that may serve; Denied those that may not.
	Allowed []replica.ID
	Denied  []replica.ID
	// Pinned names the one replica that may serve. PinnedRank is its rank, -1 or below for any;
	// it is read only when Pinned is set.
	Pinned     replica.ID
	PinnedRank int
	// MinRank and MaxRank bound the rank index, inclusive; MaxRank 0 means no bound, below zero rank 0 only.
	MinRank int
	MaxRank int
	// MaxRequests, above zero, vetoes ranks with that many requests in flight.
	MaxRequests int
}

// Result is what is known about a request when its reservation ends.
type Result struct {
	End decision.End
	// PromptTokens, OutputTokens and CachedTokens are the engine's usage; below zero when unknown.
	PromptTokens int
	OutputTokens int
	CachedTokens int
	// Counted says that they are the router's own: the prompt as it was tokenized, the overlap that was predicted,
	// and the pieces of the answer.
	Counted bool
}
