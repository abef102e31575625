package decision

import (
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Candidate is one rank as the choice saw it, with the policy's result.
type Candidate struct {
	// The fields as far as Forecast's first fill a cache line: the passes of a choice over all candidates read no others.

	RankID
	Overlap
	Veto Veto
	// Cost is compared by the policy; the lowest wins.
	Cost float64
	Forecast

	Affinity
	RankLoad
	Pace
	Revisits
	Conduct
	Adapting
	Loading
}

// RankID names a rank: its replica, its slot in this process and its index in the replica.
type RankID struct {
	Replica replica.ID
	Slot    replica.Slot
	Rank    uint16
}

// Overlap is the part of the prompt that a rank holds according to the index, and how exactly the index knows it.
type Overlap struct {
	// GPU counts the prompt's leading tokens held on the GPU, CPU and Disk the further tokens that continue the prefix in host memory, and on
	// disks or in a store that replicas share.
	GPU  uint32
	CPU  uint32
	Disk uint32
	// BlockSize is the rank's block size in tokens.
	BlockSize uint32
	Feed      kvblock.FeedState
}

// Tokens is the overlap in all tiers.
func (o *Overlap) Tokens() uint32 { return o.GPU + o.CPU + o.Disk }

// Cut bounds the overlap by so many tokens: the length of the prompt, or the part of it that the engine can take from its cache.
func (o *Overlap) Cut(tokens int) {
	left := uint32(max(0, tokens))
	for _, held := range [...]*uint32{&o.GPU, &o.CPU, &o.Disk} {
		*held = min(*held, left)
		left -= *held
	}
}

// Forecast is the predicted course of the request on a rank. Times are in seconds.
type Forecast struct {
	// TTFT is the predicted time to the first token.
	TTFT float64
	// TPOT is the predicted time of each token after the first.
	TPOT float64
	// Backlog is the predicted time until the rank has prefilled all that is booked.
	Backlog float64
	// Planned is the predicted work of requests that wait in the router for this rank and go first.
	Planned float64
	// Prefill is the predicted time to prefill Uncached.
	Prefill float64
	// Decode is how much longer than on an idle rank decoding would take here, weighted.
	Decode float64
	// Crowding is the predicted time until KV memory is free that is promised to others.
	Crowding float64
	// Late is the share by which TTFT (with the time already waited) or TPOT misses its target,
	// whichever misses by more; 0 when both are kept.
	Late float64
	// Uncached are the prompt tokens this rank would have to prefill: it neither holds them on the GPU nor is expected to load them.
	Uncached uint32
}

// Loading is the load of the overlap's part in tiers below the GPU, which the engine begins before it computes the rest. It is zero where the rank
// holds nothing there.
type Loading struct {
	// Load is the predicted time until it is loaded, in seconds, LoadWait the part of it in which loads for other requests end.
	Load     float64
	LoadWait float32
	// Loadable is how many tokens of that part the engine is expected to find; it computes the others.
	Loadable uint32
	// Named is how many tokens at the end of that part only a directory names: the index does not have them.
	Named uint32
}

// OwnLoad is the predicted time of the load alone, in seconds.
func (l *Loading) OwnLoad() float64 { return l.Load - float64(l.LoadWait) }

// Affinity ties a request to a rank by other means than the rank's blocks.
type Affinity struct {
	// Place is the rank's position on the hash ring for this request: 1 for the owner, then its
	// successors, 0 when it is not among them.
	Place uint32
	// Chars counts the leading characters that the text tree knows for this replica.
	Chars uint32
	// Held is the size of the replica's text tree in characters (prefix-affinity).
	Held uint32
	// Session is set when the request's session was last served here.
	Session bool
}

// RankLoad is the work that a rank has.
type RankLoad struct {
	// Requests counts requests in flight, Waiting the requests among them without a first token.
	Requests uint32
	Waiting  uint32
	// QueuedTokens are uncached prompt tokens booked and not yet prefilled.
	QueuedTokens uint32
	// Blocks is the rank's KV capacity in blocks; 0 when unknown.
	Blocks uint32
	// EngineWaiting and KVUsage are the engine's own report; -1 when there is none.
	EngineWaiting int32
	KVUsage       float32
	// DecodeBlocks are the KV blocks of the requests in flight.
	DecodeBlocks float64
	// Silent is how long in seconds the rank had requests and made no progress, if that is its veto.
	Silent float64
}

// Pace is how fast a rank is. Times are in seconds.
type Pace struct {
	// TokenTime is the learned prefill time per token for a short prompt, Bend the
	// context length at which attention has doubled it, StepTime the time of a decode step and
	// Slowdown the share by which its decodes slow a prefill down.
	TokenTime float64
	Bend      float64
	StepTime  float64
	Slowdown  float64
	// FullStep is the time of a step whose token budget is full of prefill.
	FullStep float64
	// Overhead is the learned time that a request spends outside of engine steps. Spread is
	// the uncertainty of TokenTime as a share of it, Speed where it comes from.
	Overhead float64
	Spread   float64
	// Busy is the share of the rank's recent time that the prefill routed to it takes.
	Busy  float64
	Speed SpeedSource
}

// Revisits are the requests that come back to a rank's blocks.
type Revisits struct {
	// Returns are the requests per second that lately came back, Saved the
	// prefill time that each was spared, and Residual how long one of them would find the rank
	// prefilling for others, on average. Times are in seconds.
	Returns  float64
	Saved    float64
	Residual float64
}

// Conduct is the evidence against a rank whose answers or claims differ from its equals'.
type Conduct struct {
	// Drag is added to its cost, in seconds, when its answers are slower than its equals', or empty.
	Drag float64
	// Claimed counts the prompt's leading tokens that the rank claims to hold on its GPU, where Trust, the share of them that counts,
	// is below 1. Slowness is the time of its output tokens over its equals' time, where that is held against it, and Suspicions has
	// all that is, as conduct.Suspicion.
	Claimed    uint32
	Trust      float32
	Slowness   float32
	Suspicions uint8
}
