// Package facts keeps the facts that every router of a fleet must know: which replicas are drained, which have registered themselves, and
// the speeds of ranks that deciders have learned. It also has stored responses' pins kept where any router finds them.
//
// A fact has a key and a version: a time by the clock of the router that made it, never less than any version seen before, and
// that router's id. Of two facts with one key the later holds, so that merging facts is commutative, associative and
// idempotent, and routers agree however messages are lost, repeated or reordered. A fact that no longer holds (an undone drain, a
// withdrawn registration) is kept as such for a day: a router that was away does not bring it back. The number of facts is bounded; the
// oldest is dropped first.
//
// Store reports changes to all peers at once, compares digests with each new peer and with one at random every few seconds,
// and applies the facts of peers. All methods are safe for concurrent use; Run does the work. Losing every message
// costs agreement, never a request.
package facts
