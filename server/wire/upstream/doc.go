// Package upstream talks to replicas over HTTP/1.1: it sends a request with the client's own
// bytes and hands back the answer as it comes.
//
// A Client keeps connections to replicas and is safe for concurrent use; Client.Run closes
// idle ones until its context ends. A Response belongs to one goroutine. Response.Next returns
// what one read returned, in a buffer that is valid until the next call; Close aborts the
// request at once unless its answer was read to the end, because an engine stops generating
// only when its connection closes.
//
// Beside the client are the parts of a retry: Classify says what an answer means, Budget
// bounds retries to a share of the requests, Breaker keeps requests away from a replica that
// fails them. Pins remembers which replica stores a response. Scanner watches the bytes of an
// answer for the first content, the usage and errors without decoding them.
//
// It decides nothing: the loop over replicas is package router's.
package upstream
