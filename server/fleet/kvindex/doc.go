// Package kvindex answers, for each rank, how many leading blocks of a prompt it holds.
//
// Index takes KV cache events (it is the sink of package kvevents), routed prompts of ranks
// without events, and short-lived beliefs about prompts routed just now; Match is the question.
// Blocks lie in flat hash tables of eight-byte slots without pointers, so the garbage
// collector never walks them; routed prompts lie apart as extents, whose number does not depend on
// the prompts' lengths. docs/kv-index.md describes the structures and their cost.
//
// All methods may be called at once from any goroutine. Match takes no lock and never waits
// for a writer. Events of one rank must come one at a time and in order; ranks run in
// parallel. Locks nest in this order: roster.mu, parked.mu, rank.mu, guesses.mu, shard.mu, setTable.mu.
//
// The index's answers are advice: a stale or missing entry costs a cache hit, never a request.
// Which state a rank's feed is in is set by the feed (SetState) and only kept here.
package kvindex
