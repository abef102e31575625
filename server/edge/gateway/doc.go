// Package gateway is the REST surface: grpc-gateway's mux over the in-process hop, and what it
// takes for OpenAI clients to notice nothing.
//
// A Gateway is an http.Handler. It reads a body once, within a limit, and hands it to the RPC
// uncopied; a streamed answer goes from the handler straight to the client, byte for byte,
// flushed as it comes. Errors have OpenAI's shape (Anthropic's below /v1/messages) with exact
// statuses; after the first byte they are the stream's last event. Routes are those of the
// contract's annotations and nobody writes one by hand. Each request has an id and a server span,
// and is counted. A Gateway is safe for concurrent use and owns no goroutine.
//
// It leaves to others: what an RPC does (grpcapi), listeners and timeouts of idle connections
// (server), health and metrics endpoints (admin).
package gateway
