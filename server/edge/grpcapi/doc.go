// Package grpcapi implements the contract's three services: proto in, domain call, proto out.
//
// An API is registered twice: on the grpc.Server for gRPC clients, and on the in-process hop for
// the REST surface. Both doors run the same interceptor: it contains panics, lets callers in by
// their API keys, checks requests against the contract's rules, and turns every error into its
// public form before grpc-go can see the private one. Raw routes (HttpBody in, a stream of
// HttpBody out) hand the client's bytes to the router and the replica's to the client unchanged.
//
// An API is safe for concurrent use and owns no goroutine. It decides nothing: choosing is
// router's and chooser's work, and what a header means beyond naming options is openai's.
package grpcapi
