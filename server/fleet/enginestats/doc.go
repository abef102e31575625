// Package enginestats reads the load that engines report on their /metrics.
//
// A Poller polls each replica at a jittered interval and keeps the newest Stats of each rank's
// slot, to be read without a lock. It also reports facts that only /metrics shows: the block size, the
// number of blocks, and when the engine process began.
//
// The engines' numbers are late: gauges change when a step ends and are seen when they are
// polled. So the main signal of load is this router's own requests in flight, which package load knows
// at once, and the engine's own count corrects it from below: Foreign estimates the requests
// from other senders (another router, a direct client), as the engine's running and waiting
// requests less our own, damped against the jitter of polling and fading when polls fail.
// A Poller is safe for concurrent use.
package enginestats
