// Package grpcapi implements the contract's services, a type each: proto in, domain call, proto out.
//
// An API is registered on the grpc.Server for gRPC clients and with the REST surface. Both run the
// same interceptors: they recover from panics, check callers' roles and requests against the
// contract's rules, and turn every error into its public form before grpc-go can see the private one. Raw routes (HttpBody in, a stream of
// HttpBody out) hand the client's bytes to the router and the replica's to the client unchanged.
//
// An API is safe for concurrent use and owns no goroutine. It decides nothing: choosing is
// router's and chooser's work, and the meaning of a header beyond naming options is openai's.
package grpcapi
