// Package enginemodel is the scheduler of a vLLM engine as a pure step machine: continuous batching
// with chunked prefill, a block cache, preemption, and a model of how long a step takes.
//
// A Machine is one data-parallel rank. It has no clock, no goroutine and no lock: Plan schedules the
// next step and says how long it takes, Complete ends it, and the driver decides when that is. The
// simulated replica (package enginesim) drives it in real time and the trace player (package replay)
// in virtual time, where Plan may plan many equal decode steps at once.
//
// Kept from vLLM, because routers depend on it:
//
//   - Admission is first come, first served; the running sequences are scheduled first.
//   - A prefix hit covers at most all but one token of the prompt.
//   - A step's blocks are found by later sequences from its planning on, and announced when it ends.
//   - Freed blocks stay cached until they are reused, the last blocks of a sequence first.
//   - Two sequences that compute the same block hold, announce and evict it twice.
//   - Blocks of generated tokens are cached and announced too.
//   - A running sequence that finds no block preempts the youngest one, which starts again from what
//     the cache still holds of it.
package enginemodel
