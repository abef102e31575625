// Package inproc is the hop between the REST surface and the services: a gRPC client connection
// whose server is in the same process.
//
// A Channel takes services (it is a grpc.ServiceRegistrar) and gives them to generated clients
// (it is a grpc.ClientConnInterface). No bytes are marshalled: messages pass by reference, so a
// message must not be changed after it was sent. Interceptors, deadlines, metadata, headers,
// trailers, cancellation and status errors work as over a socket; values of the caller's context
// stay visible, so one trace goes through; a handler that panics fails its own call only.
//
// Unary calls run on the caller's goroutine. So do server streams whose context carries an
// Exchange: their messages go straight to it (no goroutine, no channel, no allocation per
// message). All other streams run their handler on a goroutine of their own, which ends when the
// handler returns; the caller must receive until an error or cancel its context, as with any
// gRPC stream. A Channel is safe for concurrent use once its services are registered.
package inproc
