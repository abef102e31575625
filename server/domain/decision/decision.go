package decision

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Decision is one choice with everything it was made from.
type Decision struct {
	// ID names the request (and its reservation), Attempt counts its tries from zero.
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
	// RequestID is the client's X-Request-Id, or the one made for it; not necessarily unique.
	RequestID string `json:"request_id,omitempty"`
	// Tenant owns the request; empty when callers need no key.
	Tenant string    `json:"tenant,omitempty"`
	At     time.Time `json:"at"`
	// Model is the name the client used, Adapter the LoRA adapter behind it or "".
	Model   string `json:"model"`
	Adapter string `json:"adapter,omitempty"`
	Policy  Policy `json:"policy"`
	Reason  Reason `json:"reason"`
	// Objective is what predicted-ttft makes small, Targets what the answer should keep.
	Objective Objective `json:"objective,omitempty"`
	Targets   Targets   `json:"targets,omitzero"`
	// PromptTokens is the prompt's length; an estimate when Estimated.
	PromptTokens int  `json:"prompt_tokens"`
	Estimated    bool `json:"estimated,omitempty"`
	// Keyless says that the key is missing that the policy goes by: no token ids were known, so that
	// nothing exact is known of the caches, or, for consistent-hash, there is no session.
	Keyless bool `json:"keyless,omitempty"`
	// Pinned says that the request could go to one replica only: the caller named it, or it stores what
	// the request continues.
	Pinned bool `json:"pinned,omitempty"`
	// TooLong says that the prompt exceeds every context; only the ranks with the longest are left.
	TooLong bool `json:"too_long,omitempty"`
	// PromptChars is the length of the text key in characters; 0 when the policy reads none.
	PromptChars int `json:"prompt_chars,omitempty"`
	// ExpectedOutput is the expected number of output tokens; 0 when unknown.
	ExpectedOutput int  `json:"expected_output,omitempty"`
	DryRun         bool `json:"dry_run,omitempty"`

	// TraceID and SpanID name in hex the span in which the decision was made; empty when no tracer
	// recorded it.
	TraceID string `json:"trace_id,omitempty"`
	SpanID  string `json:"span_id,omitempty"`

	// Candidates holds one entry per rank of the pool, vetoed ones included.
	Candidates []Candidate `json:"candidates"`
	// Chosen is the index of the chosen candidate, -1 when there is none.
	Chosen int `json:"chosen"`
	// Margin is how much more the best other candidate would have cost, in the policy's unit
	// (seconds for predicted-ttft); 0 when there was no other.
	Margin float64 `json:"margin"`

	// Params are the policy's numbers as they were for this request.
	Params Params `json:"params"`
	// Load is the fleet's load ρ as estimated then, 0 to 1; Omega the weight 1/(1−ρ) it gave.
	Load  float64 `json:"load"`
	Omega float64 `json:"omega"`
	// Seed feeds the dice for ties, temperature and random policies. Cursor is round-robin's.
	Seed   uint64 `json:"seed"`
	Cursor uint32 `json:"cursor,omitempty"`

	// Waited is the time since the request first asked, which counts against Targets.
	Waited time.Duration `json:"waited_ns,omitempty"`
	// Held is the time the request waited in the router's queue before this choice.
	Held time.Duration `json:"held_ns,omitempty"`
	// Took is the time the choice itself took.
	Took time.Duration `json:"took_ns"`
	// Scored is the part of it that finding the overlaps took.
	Scored time.Duration `json:"scored_ns"`
	// Tries counts how often the pick lost a race against other requests and was made again.
	Tries int `json:"tries,omitempty"`
	// Shadow is what another policy would have done; nil when none runs.
	Shadow *Shadow `json:"shadow,omitempty"`
}

// Params are the numbers that an operator or a request may set for a policy; each policy reads
// its own. The zero value of a field is meaningful, so a complete Params comes from package selector.
type Params struct {
	// Temperature above zero draws among candidates by softmax over scaled costs.
	Temperature float64 `json:"temperature,omitempty"`
	// CPUCredit and DiskCredit say how much of a token held in a lower tier counts as cached.
	CPUCredit  float64 `json:"cpu_credit"`
	DiskCredit float64 `json:"disk_credit"`

	// OverlapCredit, CreditDecay, PrefillScale and RequestWeight belong to overlap-load.
	OverlapCredit float64 `json:"overlap_credit,omitempty"`
	CreditDecay   float64 `json:"credit_decay,omitempty"`
	PrefillScale  float64 `json:"prefill_scale,omitempty"`
	RequestWeight float64 `json:"request_weight,omitempty"`

	// PrefixWeight, QueueWeight and KVWeight belong to weighted-scorers.
	PrefixWeight float64 `json:"prefix_weight,omitempty"`
	QueueWeight  float64 `json:"queue_weight,omitempty"`
	KVWeight     float64 `json:"kv_weight,omitempty"`

	// MatchThreshold and ImbalanceThreshold belong to prefix-affinity; the latter 0 means none.
	MatchThreshold     float64 `json:"match_threshold,omitempty"`
	ImbalanceThreshold float64 `json:"imbalance_threshold,omitempty"`

	// Interference is the weight of the decodes that a prefill delays, Congestion that of the requests
	// that wait behind it (predicted-ttft). An objective sets both.
	Interference float64 `json:"interference,omitempty"`
	Congestion   float64 `json:"congestion,omitempty"`

	// SessionBonus is how many seconds of predicted time returning to a session's rank is worth.
	SessionBonus float64 `json:"session_bonus,omitempty"`
}

// Candidate is one rank as the choice saw it, and what the policy made of it.
type Candidate struct {
	Replica replica.ID        `json:"replica"`
	Slot    replica.Slot      `json:"slot"`
	Rank    uint16            `json:"rank"`
	Feed    kvblock.FeedState `json:"feed"`
	Veto    Veto              `json:"veto,omitempty"`
	// Session is set when the request's session was last served here.
	Session bool `json:"session,omitempty"`

	// BlockSize is the rank's block size in tokens.
	BlockSize uint32 `json:"block_size"`
	// GPU counts the prompt's leading tokens held on the GPU, CPU and Disk the further tokens
	// that continue the prefix in those tiers.
	GPU  uint32 `json:"gpu_tokens"`
	CPU  uint32 `json:"cpu_tokens,omitempty"`
	Disk uint32 `json:"disk_tokens,omitempty"`
	// Chars counts the leading characters that the text tree knows for this replica.
	Chars uint32 `json:"chars,omitempty"`
	// Held is the size of the replica's text tree in characters (prefix-affinity).
	Held uint32 `json:"held_chars,omitempty"`
	// Place is the rank's position on the hash ring for this request: 1 for the owner, then its
	// successors, 0 when it is not among them.
	Place uint32 `json:"place,omitempty"`

	// Requests counts requests in flight, Waiting those of them without a first token.
	Requests uint32 `json:"requests"`
	Waiting  uint32 `json:"waiting"`
	// QueuedTokens are uncached prompt tokens booked and not yet prefilled.
	QueuedTokens uint32 `json:"queued_tokens"`
	// DecodeBlocks are the KV blocks of the requests in flight.
	DecodeBlocks float64 `json:"decode_blocks"`
	// Blocks is the rank's KV capacity in blocks; 0 when unknown.
	Blocks uint32 `json:"blocks,omitempty"`
	// EngineWaiting and KVUsage are the engine's own report; -1 when there is none.
	EngineWaiting int32   `json:"engine_waiting"`
	KVUsage       float32 `json:"kv_usage"`

	// Backlog is the predicted time in seconds until the rank has prefilled all that is booked.
	Backlog float64 `json:"backlog_s"`
	// Planned is the predicted work in seconds of requests that wait in the router for this rank and
	// go first.
	Planned float64 `json:"planned_s,omitempty"`
	// Silent is how long in seconds the rank had requests and made no progress, if that is its veto.
	Silent float64 `json:"silent_s,omitempty"`
	// TokenTime is the learned prefill time per token in seconds for a short prompt, Bend the
	// context length at which attention has doubled it, StepTime the time of a decode step and
	// Slowdown the share by which its decodes slow a prefill down.
	TokenTime float64 `json:"token_s"`
	Bend      float64 `json:"bend_tokens"`
	StepTime  float64 `json:"step_s"`
	Slowdown  float64 `json:"slowdown"`
	// Overhead is the learned time in seconds that a request spends outside of engine steps. Spread is
	// the uncertainty of TokenTime as a share of it, Speed where it comes from.
	Overhead float64     `json:"overhead_s"`
	Spread   float64     `json:"spread"`
	Speed    SpeedSource `json:"speed_source"`

	// Busy is the share of the rank's recent time that the prefill routed to it takes.
	Busy float64 `json:"busy"`
	// Returns are the requests per second that lately came back to what the rank holds, Saved the
	// prefill time that each was spared, and Residual how long one of them would find the rank
	// prefilling for others, on average.
	Returns  float64 `json:"returns_per_s,omitempty"`
	Saved    float64 `json:"saved_s,omitempty"`
	Residual float64 `json:"residual_s,omitempty"`
	// FullStep is the time of a step whose token budget is full of prefill.
	FullStep float64 `json:"full_step_s,omitempty"`
	// Decode is how much longer than on an idle rank decoding would take here, in seconds, weighted.
	Decode float64 `json:"decode_s"`
	// Crowding is the predicted time in seconds until KV memory is free that is promised to others.
	Crowding float64 `json:"crowding_s,omitempty"`

	// Uncached are the prompt tokens this rank would have to prefill, lower tiers credited.
	Uncached uint32 `json:"uncached_tokens"`
	// Prefill is the predicted time to prefill them, TTFT the predicted time to the first token.
	Prefill float64 `json:"prefill_s"`
	TTFT    float64 `json:"ttft_s"`
	// TPOT is the predicted time of each token after the first.
	TPOT float64 `json:"tpot_s"`
	// Late is the share by which TTFT (with the time already waited) or TPOT misses its target,
	// whichever misses by more; 0 when both are kept.
	Late float64 `json:"late,omitempty"`
	// Cost is what the policy compares; the lowest wins.
	Cost float64 `json:"cost"`
}

// Shadow is the choice of a policy that was asked and not served.
type Shadow struct {
	Policy  Policy     `json:"policy"`
	Replica replica.ID `json:"replica"`
	Rank    uint16     `json:"rank"`
	// Agrees is set when both policies chose the same rank.
	Agrees bool `json:"agrees"`
	// Regret is the predicted time to the first token of the shadow's choice minus that of the
	// served one, in seconds: above zero, the shadow would have been slower.
	Regret float64 `json:"regret_s"`
}

// Clip bounds what c is said to hold by the prompt: its length may be an estimate, and so may what is
// held of it.
func (d *Decision) Clip(c *Candidate) {
	left := uint32(max(0, d.PromptTokens))
	for _, held := range [...]*uint32{&c.GPU, &c.CPU, &c.Disk} {
		*held = min(*held, left)
		left -= *held
	}
}

// Pick returns the chosen candidate, or nil.
func (d *Decision) Pick() *Candidate {
	if d.Chosen < 0 || d.Chosen >= len(d.Candidates) {
		return nil
	}
	return &d.Candidates[d.Chosen]
}
