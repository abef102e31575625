package vllm

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// Limits of one payload; more is rejected. vLLM's largest batches, one scheduler step with a
// full context window, are far below.
const (
	maxHashes = 1 << 20
	maxTokens = 1 << 24
	maxEvents = 1 << 18
	maxItems  = 1 << 18
)

// errPayload is wrapped by every error of Decode: the payload is no batch of KV events, or is
// larger than the limits.
var errPayload = errors.New("not a batch of KV events")

// Op is the kind of an Event: which of its fields is set.
type Op uint8

// The operations.
const (
	OpStored Op = iota
	OpRemoved
	OpCleared
)

// Event is one event of a batch.
type Event struct {
	Op      Op
	Stored  kvblock.Stored  // when Op is OpStored
	Removed kvblock.Removed // when Op is OpRemoved
	Tier    kvblock.Tier    // when Op is OpCleared: the tier that is empty now
}

// Batch is one decoded payload.
type Batch struct {
	// Time is the engine's clock when it published, in seconds since 1970; 0 when absent.
	Time float64
	// Rank is the data-parallel rank, -1 when the engine did not send it.
	Rank int
	// Events are in the engine's order; successive removals from one tier are joined into one.
	Events []Event
	// Wire counts the events in the payload, before joining and skipping.
	Wire int
	// UnknownTags and UnknownFields count skipped parts that are not known.
	UnknownTags, UnknownFields int
	// Misfits counts BlockStored events that were skipped because hashes and tokens cannot be
	// matched by position. PrefixMisfits counts the events of groups that form the prefix chain.
	Misfits, PrefixMisfits int
}
