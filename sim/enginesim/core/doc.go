// Package core is the simulated engine behind its API: the step machine of package enginemodel in
// real time, with tokens, block names and events.
//
// A Core is one data-parallel rank. Submit queues a Sequence, Abort ends one and frees its
// blocks at once, and Run is the one goroutine that schedules steps, waits as long as a GPU
// would compute, and delivers tokens. All methods are safe to call at once.
package core
