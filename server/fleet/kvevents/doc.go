// Package kvevents follows the KV cache event feeds of engines and drives a Sink with them.
//
// A Plane has one feed per rank. Add and Remove follow the registry, Run does the work, Status
// reports how each feed does; all are safe for concurrent use. For each rank the Sink sees one
// goroutine at a time and the engine's own order. Batches are decoded on a bounded set of
// goroutines; queues are bounded: a full one stops the reading of its socket, so that the
// engine's high-water mark decides, and a replay fetches the batches that the engine drops then.
//
// The states promise:
//
//   - COLD: not reached yet, or the first replay is not finished. Nothing is known.
//   - EXACT: the Sink holds the engine's blocks, up to events under way. Reached when the stream, or a
//     replay, was followed from batch 0; when a replay shows that nothing was published yet; and when the
//     engine reports that its GPU cache is empty and no lower tier was ever seen.
//   - DEGRADED: the Sink holds a part of the engine's blocks: the ring of past batches did not
//     reach back to the start, a batch could not be read, or batches are in no replay (then everything known
//     before them was reset, because it may since have been removed). While the feed is not connected the
//     state is DEGRADED too, and the blocks may be stale.
//   - NONE: the rank publishes no events.
//
// The replay socket may belong to another engine. The first live batch of each connection is therefore compared with the replay
// of its number, before the rank becomes EXACT by a replay. Where they differ, the replayed blocks are dropped, the state is
// DEGRADED with that reason, and live batches alone are followed; the comparison is repeated from time to time. An engine that has
// just restarted differs too, until its connection ends: the warning waits for a second comparison. An engine that publishes nothing gives nothing to compare: its state rests on the replay until its first live batch.
//
// An engine life has no name on the wire. It is recognised by the content of the last batch: a
// replay is asked for from that batch on, and the answer must begin with the same bytes. A
// number that goes back, another content, or an answer without the batch is a new life: the
// rank is reset at once and read from the start. Without a replay socket only numbers
// show it: a connection that continues with the next number is taken for the same life. Where a replay socket is set and fails to
// show it, the rank is DEGRADED until all was read again. An endpoint
// "grpc://host:port" is vLLM's Control service, which lists the sockets and names the process.
//
// Package sequence has the rules: it turns events (a connection, a batch, the end of a replay, a tick) into effects (apply, reset,
// request a replay). Here a feed reads the sockets and runs the replays, and its follower executes the effects. Decoding is in
// package vllm, the wire in server/wire/zmtp. The meaning of blocks is the Sink's work.
package kvevents
