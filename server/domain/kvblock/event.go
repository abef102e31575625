package kvblock

// EngineHash is an engine's own name for a block, opaque to the router and meaningful only
// within one rank and one engine life. Signed hashes are reinterpreted as unsigned; byte
// strings give their last eight bytes, big-endian (vLLM's own rule for the integer form).
type EngineHash uint64

// Tier is the memory that holds a block.
type Tier uint8

// The tiers, fastest first.
const (
	TierGPU Tier = iota
	TierCPU
	TierDisk
	// Tiers is the number of tiers.
	Tiers = 3
)

// String gives the tier in the form that metrics and JSON use.
func (t Tier) String() string {
	switch t {
	case TierGPU:
		return "gpu"
	case TierCPU:
		return "cpu"
	case TierDisk:
		return "disk"
	}
	return "unknown"
}

// Kind is the attention kind of the KV cache group that a block belongs to.
type Kind uint8

// The kinds that matter for prefix matching.
const (
	// KindUnknown: the engine did not say; group 0 or no group counts as full attention.
	KindUnknown Kind = iota
	// KindFull: full, MLA or sink attention; these blocks form the prefix chain.
	KindFull
	// KindWindow: sliding-window or chunked local attention; limits reuse, forms no chain.
	KindWindow
	// KindMamba: state-space groups; limit reuse, form no chain.
	KindMamba
	// KindOther: encoder-only, cross attention or anything unknown; ignored.
	KindOther
)

// NoGroup is the group of an event that names none.
const NoGroup = -1

// Stored says that a rank now holds blocks: Hashes[i] names the block with tokens
// Tokens[i*BlockSize:(i+1)*BlockSize], and each block continues the one before it.
type Stored struct {
	Hashes []EngineHash
	// Parent is the block that Hashes[0] continues; meaningful only when HasParent.
	Parent    EngineHash
	HasParent bool
	// Tokens are the token ids of all blocks. Empty in placeholder stores of offload tiers.
	Tokens []uint32
	// BlockSize is in tokens; 0 in placeholder stores.
	BlockSize int
	// Adapter is the LoRA adapter's name, empty for the base model. AdapterID is the engine's own
	// number for it when only that is known (before 0.14), else 0.
	Adapter   string
	AdapterID int64
	// Salt is the cache_salt of the first block when the event is a root, else empty.
	Salt string
	// Items are the multimodal identifiers, one entry per block; nil when no block has any.
	Items [][]Item
	// Ambiguous is set when the extra keys hold something that the decoder cannot name (prompt
	// embeddings, unknown shapes): the blocks cannot be keyed and must not be matched.
	Ambiguous bool
	Tier      Tier
	// Remote is set when the tier is not this rank's own (locality REMOTE).
	Remote bool
	Group  int
	Kind   Kind
	// Window is the sliding window in tokens; 0 when there is none.
	Window int
	// Lookahead is how many tokens behind each block its hash covers too: engines that speculate
	// find a block only when these are the same.
	Lookahead int
}

// Item is a multimodal item that overlaps a block.
type Item struct {
	// ID is the engine's identifier of the item (its content hash or the client's uuid).
	ID string
	// Offset is the item's first token relative to the block's first token; it may be negative.
	// HasOffset is false for engines that do not report it (0.18).
	Offset    int
	HasOffset bool
}

// Removed says that a rank evicted one copy of each of these blocks from a tier.
type Removed struct {
	Hashes []EngineHash
	Tier   Tier
	Remote bool
	Group  int
}

// FeedState says how far the index may be trusted for one rank.
type FeedState uint8

// The feed states.
const (
	// FeedNone: the rank publishes no events; its entries are guesses from the prompts routed to it.
	FeedNone FeedState = iota
	// FeedCold: connected or connecting; the content is not known yet.
	FeedCold
	// FeedExact: every event since the engine's start, or since a full replay, was applied.
	FeedExact
	// FeedDegraded: events were lost or not understood; the known blocks are a lower bound.
	FeedDegraded
)

// String gives the state in the form that metrics, logs and JSON use.
func (s FeedState) String() string {
	switch s {
	case FeedNone:
		return "none"
	case FeedCold:
		return "cold"
	case FeedExact:
		return "exact"
	case FeedDegraded:
		return "degraded"
	}
	return "unknown"
}
