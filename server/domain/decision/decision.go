package decision

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Decision is one choice with everything it was made from.
type Decision struct {
	Request
	Prompt
	Rule
	Ranks
	Deciders
	Fleet
	Timing
	At     time.Time
	DryRun bool
	Reason Reason
	// Margin is how much more the best other candidate would have cost, in the policy's unit
	// (seconds for predicted-ttft); 0 when there was no other.
	Margin float64
	// Ways are the ways to serve the request with their prices, the taken one first; nil where no replica may compute the prompt for
	// another one. The pick is the rank that writes the answer.
	Ways []Way
	// Lookup is the question to a directory about the prompt; nil when none was asked.
	Lookup *Lookup
	// Memory is the wait of a program's call for memory before this choice; nil when it did not wait for any.
	Memory *MemoryWait
	// Shadow is the choice that another policy would have made; nil when none runs.
	Shadow *Shadow
}

// Request names the request that a decision is for.
type Request struct {
	// ID names the request (and its reservation), Attempt counts its tries from zero.
	ID      string
	Attempt int
	// RequestID is the client's X-Request-Id, or the one made for it; not necessarily unique.
	RequestID string
	// Tenant owns the request; empty when callers need no key.
	Tenant string
	// Model is the name the client used, Adapter the LoRA adapter behind it or "".
	Model   string
	Adapter string
	// TraceID and SpanID name in hex the span in which the decision was made; empty when no tracer
	// recorded it.
	TraceID string
	SpanID  string
	// Side is the request's side of a split; its zero value: its model is not split.
	Side Side
}

// Side is the side of a request whose model is split.
type Side struct {
	// Model is the model that is split, as the client named it, Name the side's name.
	Model, Name string
	// InsteadOf is the side that the weights would have given, which has stepped back or has no ready replica; empty elsewhere.
	InsteadOf string
}

// Prompt is the size of a request, and how exactly it is known.
type Prompt struct {
	// PromptTokens is the prompt's length; an estimate when Estimated.
	PromptTokens int
	Estimated    bool
	// Keyless says that the key is missing that the policy goes by: no token ids were known, so that
	// nothing exact is known of the caches, or, for consistent-hash, there is no session.
	Keyless bool
	// TooLong says that the prompt exceeds every context; only the ranks with the longest are left.
	TooLong bool
	// PromptChars is the length of the text key in characters; 0 when the policy reads none.
	PromptChars int
	// Splittable says that one rank may compute the prompt and another one write the answer.
	Splittable bool
	// ExpectedOutput is the expected number of output tokens; 0 when unknown.
	ExpectedOutput int
}

// Rule is the policy of a decision, with its numbers as they were for the request.
type Rule struct {
	Policy Policy
	// Objective is minimized by predicted-ttft, Targets should be kept by the answer.
	Objective Objective
	Targets   Targets
	Params    Params
	// Whole says that nothing but the end of the answer counts: no client sees its first token.
	Whole bool
	// Pinned says that the request could go to one replica only: the caller named it, or it stores the response that the request continues.
	Pinned bool
	// Seed feeds the dice for ties, temperature and random policies. Cursor is round-robin's.
	Seed   uint64
	Cursor uint32
}

// Deciders are the routers of a fleet that took part. All fields are empty in a fleet of one.
type Deciders struct {
	// DecidedBy is the id of the router that made the decision when another one asked it, AskedBy the id of the router that asked;
	// Alone says why a router of a fleet decided without the others.
	DecidedBy string
	AskedBy   string
	Alone     string
}

// Fleet is the state of the fleet for which a decision weighs its costs.
type Fleet struct {
	// Load is the fleet's load ρ as estimated then, 0 to 1; Omega the weight 1/(1−ρ) it gave.
	Load  float64
	Omega float64
	// Rate is the mean prefill rate of the ranks that may serve, in tokens per second; 0 when none is known.
	Rate float64
	// Returning is how likely the request's session sends a next turn, from 0 to 1.
	Returning float64
}

// Timing is the time that a choice took and the time before it.
type Timing struct {
	// Waited is the time since the request first asked, which counts against Targets.
	Waited time.Duration
	// Held is the time the request waited in the router's queue before this choice.
	Held time.Duration
	// Took is the time the choice itself took.
	Took time.Duration
	// Scored is the part of it that finding the overlaps took.
	Scored time.Duration
	// Tries counts how often the pick lost a race against other requests and was made again.
	Tries int
}

// Shadow is the choice of a policy that was asked and not served.
type Shadow struct {
	Policy  Policy
	Replica replica.ID
	Rank    uint16
	// Agrees is set when both policies chose the same rank.
	Agrees bool
	// Regret is the predicted time to the first token of the shadow's choice minus the time of the served one,
	// in seconds: above zero, the shadow would have been slower.
	Regret float64
}
