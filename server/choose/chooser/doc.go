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
// Its parts, each of which uses only those before it:
//
//   - rankTable: the ranks that exist, with the speed, conduct and liveness of each; lines: the state of each model;
//     memory: the state that policies keep of earlier requests
//   - comparison: compares ranks with their equals
//   - evaluator: all that is known of the ranks for one request
//   - leases: the choices of callers outside this process
//   - booker: books the pick of an evaluation and makes its Choice
//   - waitingRoom: holding (requests that wait for room) and admission (programs that wait for memory)
//   - watch: finds the ranks that make no progress and withdraws their requests
//
// A Choice is a reservation of the load book and the Observers of its request: the flight (liveness), the stream (conduct), the lesson
// (speed), the answers (lengths), the belief (index), the program, the lease, the outcome (record), the peer and the freed load
// (waiting requests).
package chooser
