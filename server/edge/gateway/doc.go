// Package gateway is the REST surface, compatible with OpenAI clients.
//
// A Gateway is an http.Handler. Its routes come from the contract's annotations. A raw route (its
// RPC carries an HttpBody) calls the generated server interface with a stream that writes to the
// client, byte for byte, flushed as it comes. A typed route goes through grpc-gateway's generated
// handler, whose client connection calls the method in this process. A body is read once, within a limit, and handed over
// uncopied. Errors have OpenAI's shape (Anthropic's below /v1/messages) with exact statuses; after
// the first byte they are the stream's last event. Each request has an id and a server span, and is
// counted. A Gateway is safe for concurrent use.
//
// Other packages do the rest: the work of an RPC (grpcapi), listeners and timeouts of idle connections
// (server), health and metrics endpoints (admin).
package gateway
