package enginemodel

import "github.com/kvpilot/kvpilot/server/domain/blockhash"

// Sequence is one prompt and its answer. The driver sets the exported fields before Submit and may
// only append to Keys afterwards.
type Sequence struct {
	// Owner is the driver's own.
	Owner any
	// Keys name the full blocks of prompt and answer in order. A block without a key is never found
	// or announced. Before the next Plan the driver appends the keys of blocks that Complete filled.
	Keys []blockhash.Hash
	// Prompt is the number of prompt tokens, Most the number of the answer's, after which the sequence ends.
	// With Most 0 the prompt is only computed.
	Prompt, Most int
	// Adapter is its LoRA adapter; empty for the base model.
	Adapter string
	// NoHits makes the sequence compute its whole prompt.
	NoHits bool
	// Remote has the prompt's cache come from another engine: Plan gives the sequence memory for all of it and names it in Step.Reads, and
	// it waits for Arrive.
	Remote bool

	state    state
	made     int // tokens of the answer
	blocks   []int32
	named    int // blocks that have their key, or had it when they were found
	computed int // tokens whose KV is in blocks
	planned  int // tokens of the present step
	cached   int
	admitted bool
	remote   remote
	loading  int // blocks that come from tiers below the GPU
}

// remote is how far the cache of a Remote sequence is.
type remote uint8

const (
	missing remote = iota
	fetched        // asked for
	arrived        // there, and not scheduled since
)

type state uint8

const (
	idle state = iota
	waiting
	reading // its blocks are being filled from another engine, or from tiers below the GPU
	running
	ended
)

// Live reports whether s was submitted and has not ended.
func (s *Sequence) Live() bool { return s.state == waiting || s.state == reading || s.state == running }

// Cached is how many prompt tokens were found in the cache when s was first scheduled.
func (s *Sequence) Cached() int { return s.cached }

// Made counts the tokens of the answer so far.
func (s *Sequence) Made() int { return s.made }

// length counts the tokens that are known.
func (s *Sequence) length() int { return s.Prompt + s.made }
