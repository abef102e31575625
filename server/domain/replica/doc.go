// Package replica holds the words for engine processes: identifiers, ranks, slots, states
// and the immutable view of one replica that every part of the router reads.
//
// A replica is one vLLM engine process behind one base URL. It may have several
// data-parallel ranks, each with a KV cache of its own; a Slot is the dense number that this
// process gives to a rank, so that indexes can be arrays. All types here are plain values;
// a *Replica is never changed after it was published and may be shared freely.
package replica
