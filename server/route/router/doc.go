// Package router takes one request from its prompt to its last byte.
//
// Router.Serve reads the body, gets the prompt's token ids, lets the chooser decide and reserve,
// and streams the chosen replica's answer to the caller's Sink. Before the first byte it may retry on
// another replica; after it, another replica may resume a stream of plain text, where the operator allows
// that. Choose does the same up to the reservation and hands that to
// the caller, which reports the rest through the lifecycle methods.
//
// A Router is safe for concurrent use and keeps no state of its own beyond counters: if anything
// goes wrong in the parts that advise it (tokenizer, index, load), a request that a replica could
// have answered is answered. It knows neither gRPC nor HTTP servers: those are surfaces.
package router
