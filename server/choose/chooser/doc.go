// Package chooser decides which rank serves a request and books it there, as one step.
//
// A Chooser joins the pool's replicas with the index (each rank's blocks), the load book (each rank's work),
// the engines' own reports and the learned rates, has package
// selector choose, and reserves with an optimistic check, so that concurrent requests see
// each other. Under predicted-ttft a request waits in package holdqueue while every
// suitable rank already has enough to do. A Choice must be ended with Release on every way
// out; all its methods are idempotent. A Chooser is safe for concurrent use. It starts no
// goroutine of its own outside Run and does no I/O.
//
// It only joins its parts, and hands calls on to them. They are packages below it; each imports only the ones before it:
//
//   - number, clock: a float for many goroutines, and the time of a chooser
//   - settings, ask, reports: the words: settings, requests and their ends, the reports of engines
//   - rank: the ranks that exist, with the speed, conduct and liveness of each; compare: compares ranks with their equals
//   - layout: a pool laid out by rank; answers: how long answers are; past: the policies' memory of requests; claims: the programs
//   - evaluate: all that is known of the ranks for one request, and the choice by it
//   - follow: the observers of a booked request; leases: the choices of callers outside this process
//   - booking: books the pick of an evaluation and makes its Choice
//   - waiting: the requests that wait, for memory and then for room on a rank
//   - watch: finds the ranks that make no progress and withdraws their requests
//
// A Choice is a reservation of the load book and the Observers of its request: the flight (liveness), the stream (conduct), the lesson
// (speed), the answers (lengths), the belief (index), the program, the lease, the outcome (record), the peer and the freed load
// (waiting requests).
package chooser
