// Package core is the simulated engine behind its API: an LRU block cache with vLLM's rules, a
// scheduler with continuous batching and chunked prefill, and a model of how long a step takes.
//
// A Core is one data-parallel rank. Submit queues a Sequence, Abort ends one and frees its
// blocks at once, and Run is the one goroutine that schedules steps, waits as long as a GPU
// would compute, and hands out tokens. All methods are safe to call at once.
//
// Kept from vLLM, because routers depend on it: a prefix hit covers at most all but one token
// of the prompt; freed blocks stay cached until they are reused, last blocks first; two requests
// that compute the same block hold, announce and evict it twice; blocks of generated tokens are
// cached and announced as well; admission is first come, first served; a sequence that finds
// no block preempts the youngest one.
package core
