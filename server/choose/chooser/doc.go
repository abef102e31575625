// Package chooser decides which rank serves a request and books it there, as one step.
//
// A Chooser joins the pool's replicas with the index (what each rank holds), the load book
// (what each rank has to do), the engines' own reports and the learned rates, has package
// selector choose, and reserves with an optimistic check, so that concurrent requests see
// each other. Under predicted-ttft a request waits in package holdqueue while every
// suitable rank already has enough to do. A Choice must be ended with Release on every way
// out; all its methods are idempotent. A Chooser is safe for concurrent use. It starts no
// goroutine of its own outside Run and does no I/O.
package chooser
