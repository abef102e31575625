// Package upstream is the client that talks to replicas over HTTP/1.1: it sends a request with the client's own
// bytes and returns the response as it comes.
//
// A Client keeps connections to replicas and is safe for concurrent use; Client.Run closes
// idle ones until its context ends. A Response belongs to one goroutine. Response.Next returns the bytes of one read,
// in a buffer that is valid until the next call; Close aborts the
// request at once unless its response was read to the end, because an engine stops generating
// only when its connection closes. Classify maps the result of an exchange to a verdict.
//
// The connections are kvpilot's own, over package http1; only the handshake of a WebSocket uses net/http's.
package upstream
