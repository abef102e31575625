// Package holdqueue is the hold queue: requests wait here, in the router, while every suitable
// rank has enough to do, because an engine would serve them first come first served, on the
// rank that looked best too early.
//
// A Queue has a Line per pool. Push adds a Ticket or refuses it (bounds on count and bytes, a
// deadline that cannot be met); Visit offers the waiting tickets in the order in which they
// should go: tenants share the line by their weights, in predicted seconds of the engines; within a tenant,
// higher priority goes first, then the cheapest predicted work with credit for the time waited, so that
// nothing starves. The queue knows nothing of
// replicas: the visitor decides what goes and where. Len of an empty queue is one atomic
// load. All methods are safe for concurrent use; the function given to Visit runs under the
// line's lock and must not call back into the line.
package holdqueue
