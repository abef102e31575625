package decision

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Decision is one choice with everything it was made from.
type Decision struct {
	// ID names the request (and its reservation), Attempt counts its tries from zero.
	ID      string
	Attempt int
	// RequestID is the client's X-Request-Id, or the one made for it; not necessarily unique.
	RequestID string
	// Tenant owns the request; empty when callers need no key.
	Tenant string
	At     time.Time
	// Model is the name the client used, Adapter the LoRA adapter behind it or "".
	Model   string
	Adapter string
	Policy  Policy
	Reason  Reason
	// Objective is what predicted-ttft makes small, Targets what the answer should keep.
	Objective Objective
	Targets   Targets
	// PromptTokens is the prompt's length; an estimate when Estimated.
	PromptTokens int
	Estimated    bool
	// Keyless says that the key is missing that the policy goes by: no token ids were known, so that
	// nothing exact is known of the caches, or, for consistent-hash, there is no session.
	Keyless bool
	// Pinned says that the request could go to one replica only: the caller named it, or it stores what
	// the request continues.
	Pinned bool
	// TooLong says that the prompt exceeds every context; only the ranks with the longest are left.
	TooLong bool
	// PromptChars is the length of the text key in characters; 0 when the policy reads none.
	PromptChars int
	// ExpectedOutput is the expected number of output tokens; 0 when unknown.
	ExpectedOutput int
	DryRun         bool

	// DecidedBy is the id of the router that made the decision when another one asked it, AskedBy the id of the one that asked;
	// Alone says why a router of a fleet decided without the others. Empty in a fleet of one.
	DecidedBy string
	AskedBy   string
	Alone     string

	// TraceID and SpanID name in hex the span in which the decision was made; empty when no tracer
	// recorded it.
	TraceID string
	SpanID  string

	// Candidates holds one entry per rank of the pool, vetoed ones included. The record of a choice among more than 64 ranks lists
	// those that mattered, unless it was made to be read (a dry run, explain): the pick, the 32 cheapest, the 16 that hold most of
	// the prompt, the fastest, those that the policy remembers, the cheapest of another replica, and one of each veto. Of another
	// router's decision it lists the pick. It is nil where they are packed, as in most records: List returns them in either form.
	Candidates []Candidate
	packed     *packed
	// Others counts the ranks that could serve and are not among Candidates. All were priced; where this router decided, none costs
	// less than the 32 cheapest. VetoedOthers counts those that could not serve.
	Others, VetoedOthers int
	// Elsewhere reports, of another router's decision, whether another replica could have been chosen; HasOtherReplica reports it of any.
	Elsewhere bool
	// Chosen is the index of the chosen candidate, -1 when there is none.
	Chosen int
	// Margin is how much more the best other candidate would have cost, in the policy's unit
	// (seconds for predicted-ttft); 0 when there was no other.
	Margin float64

	// Params are the policy's numbers as they were for this request.
	Params Params
	// Load is the fleet's load ρ as estimated then, 0 to 1; Omega the weight 1/(1−ρ) it gave.
	Load  float64
	Omega float64
	// Seed feeds the dice for ties, temperature and random policies. Cursor is round-robin's.
	Seed   uint64
	Cursor uint32

	// Returning is how likely the request's session sends a next turn, from 0 to 1.
	Returning float64
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
	// Shadow is what another policy would have done; nil when none runs.
	Shadow *Shadow
}

// Params are the numbers that an operator or a request may set for a policy; each policy reads
// its own. The zero value of a field is meaningful, so a complete Params comes from package selector.
type Params struct {
	// Temperature above zero draws among candidates by softmax over scaled costs.
	Temperature float64
	// CPUCredit and DiskCredit say how much of a token held in a lower tier counts as cached.
	CPUCredit  float64
	DiskCredit float64

	// OverlapCredit, CreditDecay, PrefillScale and RequestWeight belong to overlap-load.
	OverlapCredit float64
	CreditDecay   float64
	PrefillScale  float64
	RequestWeight float64

	// PrefixWeight, QueueWeight and KVWeight belong to weighted-scorers.
	PrefixWeight float64
	QueueWeight  float64
	KVWeight     float64

	// MatchThreshold and ImbalanceThreshold belong to prefix-affinity; the latter 0 means none.
	MatchThreshold     float64
	ImbalanceThreshold float64

	// Interference is the weight of the decodes that a prefill delays, Congestion that of the requests
	// that wait behind it (predicted-ttft). An objective sets both.
	Interference float64
	Congestion   float64

	// SessionBonus is how many seconds of predicted time returning to a session's rank is worth.
	SessionBonus float64
}

// Candidate is one rank as the choice saw it, and what the policy made of it.
type Candidate struct {
	// The fields as far as TTFT fill a cache line: the passes of a choice over all candidates read no others.

	Replica replica.ID
	Slot    replica.Slot
	Rank    uint16
	Feed    kvblock.FeedState
	Veto    Veto
	// Session is set when the request's session was last served here.
	Session bool

	// BlockSize is the rank's block size in tokens.
	BlockSize uint32
	// GPU counts the prompt's leading tokens held on the GPU, CPU and Disk the further tokens
	// that continue the prefix in those tiers.
	GPU  uint32
	CPU  uint32
	Disk uint32
	// Place is the rank's position on the hash ring for this request: 1 for the owner, then its
	// successors, 0 when it is not among them.
	Place uint32
	// Cost is what the policy compares; the lowest wins.
	Cost float64
	// TTFT is the predicted time to the first token.
	TTFT float64

	// Chars counts the leading characters that the text tree knows for this replica.
	Chars uint32
	// Held is the size of the replica's text tree in characters (prefix-affinity).
	Held uint32

	// Requests counts requests in flight, Waiting those of them without a first token.
	Requests uint32
	Waiting  uint32
	// QueuedTokens are uncached prompt tokens booked and not yet prefilled.
	QueuedTokens uint32
	// DecodeBlocks are the KV blocks of the requests in flight.
	DecodeBlocks float64
	// Blocks is the rank's KV capacity in blocks; 0 when unknown.
	Blocks uint32
	// EngineWaiting and KVUsage are the engine's own report; -1 when there is none.
	EngineWaiting int32
	KVUsage       float32

	// Backlog is the predicted time in seconds until the rank has prefilled all that is booked.
	Backlog float64
	// Planned is the predicted work in seconds of requests that wait in the router for this rank and
	// go first.
	Planned float64
	// Silent is how long in seconds the rank had requests and made no progress, if that is its veto.
	Silent float64
	// TokenTime is the learned prefill time per token in seconds for a short prompt, Bend the
	// context length at which attention has doubled it, StepTime the time of a decode step and
	// Slowdown the share by which its decodes slow a prefill down.
	TokenTime float64
	Bend      float64
	StepTime  float64
	Slowdown  float64
	// Overhead is the learned time in seconds that a request spends outside of engine steps. Spread is
	// the uncertainty of TokenTime as a share of it, Speed where it comes from.
	Overhead float64
	Spread   float64
	Speed    SpeedSource

	// Busy is the share of the rank's recent time that the prefill routed to it takes.
	Busy float64
	// Returns are the requests per second that lately came back to what the rank holds, Saved the
	// prefill time that each was spared, and Residual how long one of them would find the rank
	// prefilling for others, on average.
	Returns  float64
	Saved    float64
	Residual float64
	// FullStep is the time of a step whose token budget is full of prefill.
	FullStep float64
	// Decode is how much longer than on an idle rank decoding would take here, in seconds, weighted.
	Decode float64
	// Crowding is the predicted time in seconds until KV memory is free that is promised to others.
	Crowding float64
	// Drag is what the rank's conduct adds to its cost, in seconds: its answers are slower than those of its equals, or empty.
	Drag float64
	// Claimed counts the prompt's leading tokens that the rank claims to hold, in all tiers, where Trust, the share of them that counts,
	// is below 1. Slowness is the time of its output tokens over that of its equals', where that is held against it, and Suspicions has
	// all that is, as conduct.Suspicion.
	Claimed    uint32
	Suspicions uint8
	Trust      float32
	Slowness   float32

	// Uncached are the prompt tokens this rank would have to prefill, lower tiers credited.
	Uncached uint32
	// Prefill is the predicted time to prefill them.
	Prefill float64
	// TPOT is the predicted time of each token after the first.
	TPOT float64
	// Late is the share by which TTFT (with the time already waited) or TPOT misses its target,
	// whichever misses by more; 0 when both are kept.
	Late float64
}

// Shadow is the choice of a policy that was asked and not served.
type Shadow struct {
	Policy  Policy
	Replica replica.ID
	Rank    uint16
	// Agrees is set when both policies chose the same rank.
	Agrees bool
	// Regret is the predicted time to the first token of the shadow's choice minus that of the
	// served one, in seconds: above zero, the shadow would have been slower.
	Regret float64
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
	if d.Chosen < 0 || d.Chosen >= d.Listed() {
		return nil
	}
	if p := d.compact(); p != nil {
		return &p.pick
	}
	return &d.Candidates[d.Chosen]
}
