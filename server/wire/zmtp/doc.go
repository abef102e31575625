// Package zmtp speaks ZMTP 3.0 and 3.1 with the NULL mechanism: the wire protocol of ZeroMQ,
// as far as engines' KV event streams need it, in pure Go.
//
// Conn is one connection after its handshake. Recv reads whole messages into a Message that
// the caller owns and reuses, answers PING, sends PING when the peer is quiet and gives up on
// a peer that stays silent. One goroutine may call Recv while others send. A connection never
// reconnects by itself: the reader of a stream must know about every break in it.
//
// Serve accepts connections for the bound side of any socket type. Pub and Publisher are the
// publishing side: Pub fans messages out to subscribers and drops for slow ones,
// as ZeroMQ does; Publisher numbers batches and answers replay requests from a ring, in the
// framing of vLLM's KV event publisher. Sizes from the wire are bounded before memory is.
package zmtp
