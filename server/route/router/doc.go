// Package router takes one request from its prompt to its last byte.
//
// Router.Serve reads the body, gets the prompt's token ids, lets the chooser decide and reserve, and streams the chosen replica's answer to the
// caller's Sink. Before the first byte it may retry on another replica; after it, another replica may resume the stream, where the operator allows
// that. Choose does the same up to the reservation and hands that to the caller, which reports the rest through the lifecycle methods.
//
// Its steps are packages, each of which imports only those before it:
//
//   - intake makes a Request of a call;
//   - attempt has a replica chosen for it and sends it there, once or on several replicas;
//   - answer gives the client the answer;
//   - direct answers the calls for models, stored responses, adapters and WebSockets.
//
// The package itself joins them: Router; requestEnds, which counts and logs the end; bill, which finds the cost; handoffs, which chooses for
// requests that a gateway sends; advisor, which answers external callers; leaving, the streams that continue at another router.
//
// Parts that need no request are packages, too: salts (the cache_salt of a tenant), pools (the pools of a view of the registry), opening (the
// beginning of an answer), pauses (answers that an engine aborted), tunnel (the bytes of a switched connection), story (the steps that
// become spans).
//
// A Router is safe for concurrent use and keeps no state of its own beyond counters: if anything goes wrong in the parts that advise it (tokenizer,
// index, load), a request that a replica could have answered is answered. It knows neither gRPC nor HTTP servers: those are surfaces.
package router
