// Package blockhash turns token ids into the router's own names for KV cache blocks.
//
// A block's Hash stands for its tokens and everything before them, so two ranks hold the same
// prefix if and only if they hold the same hashes (up to 64-bit collisions). The scheme is the
// one that Dynamo's router publishes: XXH3-64 over the block's token ids as uint32
// little-endian with a seed of 1337 plus terms for the adapter and the cache salt, chained as
// XXH3-64(previous, current) with seed 1337. A multimodal item adds the XXH3-64 of its
// identifier to the blocks that it overlaps, in order of place. Its offset is not hashed: the
// tokens before it and the identifiers fix it already, and not all engines report it.
//
// All functions are pure and safe for concurrent use.
package blockhash
