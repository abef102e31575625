// Package cache keeps values by 128-bit key within a bound of bytes.
//
// A Cache is split into shards, each with a map and a SIEVE queue: a hit sets a bit under a
// read lock and moves nothing, and eviction passes over values hit since its last round. A value larger than a shard's share is not kept.
// All methods are safe for concurrent use; values
// are shared and must not be changed in ways that their owner does not guard.
package cache
