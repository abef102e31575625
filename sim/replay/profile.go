package replay

import (
	"time"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Profile is the timing and size of a modelled replica.
type Profile struct {
	Name string
	// GPUs is how many a replica takes.
	GPUs   int
	Timing enginemodel.Timing
	// MaxBatchedTokens is the tokens per step, MaxSeqs the sequences at once.
	MaxBatchedTokens, MaxSeqs int
	// CacheTokens is the KV capacity in tokens.
	CacheTokens int
	// Adapters is how LoRA adapters are kept; without slots they take no time.
	Adapters enginemodel.Adapters
}

// Profiles lists the built-in replicas; the first is the default.
func Profiles() []Profile {
	return []Profile{
		{
			Name: "70b", GPUs: 4, MaxBatchedTokens: 2048, MaxSeqs: 256, CacheTokens: 640000,
			Timing: enginemodel.Timing{
				PrefillRate: 8000, HalfContext: 50000,
				Base: 10 * time.Millisecond, PerSequence: 50 * time.Microsecond, PerContextToken: 17 * time.Nanosecond, Speed: 1,
			},
		},
		{
			Name: "8b", GPUs: 1, MaxBatchedTokens: 4096, MaxSeqs: 256, CacheTokens: 400000,
			Timing: enginemodel.Timing{
				PrefillRate: 25000, HalfContext: 30000,
				Base: 6 * time.Millisecond, PerSequence: 30 * time.Microsecond, PerContextToken: 55 * time.Nanosecond, Speed: 1,
			},
		},
	}
}

// model is the replica as a step machine with blocks of block tokens.
func (p *Profile) model(block int) enginemodel.Config {
	return enginemodel.Config{
		BlockSize: block, Blocks: p.CacheTokens / block, MaxBatchedTokens: p.MaxBatchedTokens, MaxSeqs: p.MaxSeqs,
		WholePrompts: true, Timing: p.Timing, Adapters: p.Adapters,
	}
}

// Delays are the times between client, router and engines, in seconds. The zero value has none.
type Delays struct {
	// Tokenize is how long the router needs for a prompt's token ids, TokenizeToken what each token
	// adds to that.
	Tokenize, TokenizeToken float64
	// Send is the time from the choice until the engine's scheduler has the request, Receive from the end
	// of a step until the router has the first of its outputs. The engine's front end writes the
	// outputs of one step one after the other, Gap apart, and each is late by an exponential time of mean
	// Jitter, so that they may change places.
	// Each request is late by an exponential time of mean SendJitter: they travel on connections of their own, and the
	// engine's front end reads them at once.
	Send, SendJitter, Receive, Gap, Jitter float64
	// Event is the time from the end of a step until the router's index has its KV events.
	Event float64
}

// LocalDelays are those of one network without congestion: docs/quality.md says where they come from.
func LocalDelays() Delays {
	return Delays{Tokenize: 1e-3, TokenizeToken: 1e-6, Send: 1e-3, SendJitter: 1e-3, Receive: 0.5e-3, Gap: 10e-6, Jitter: 100e-6, Event: 1e-3}
}

// tokenizing is the time for a prompt of so many tokens.
func (d *Delays) tokenizing(tokens int) float64 { return d.Tokenize + d.TokenizeToken*float64(tokens) }
