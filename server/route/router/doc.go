// Package router takes one request from its prompt to its last byte.
//
// Router.Serve reads the body, gets the prompt's token ids, lets the chooser decide and reserve,
// and streams the chosen replica's answer to the caller's Sink. Before the first byte it may retry on
// another replica; after it, another replica may resume a stream of plain text, where the operator allows
// that. Choose does the same up to the reservation and hands that to
// the caller, which reports the rest through the lifecycle methods.
//
// The parts, each with its file; New joins them, and none refers to the Router:
//
//   - intake makes a request of a call (limits, isolation and responses are its parts);
//   - retries makes attempts until one has answered, and decides whether another replica is tried;
//   - attempts makes one: picker has the chooser decide, engines sends the request, refusals pauses a replica that
//     answers 429 or 503 and words that for the client, blame finds the party at fault for a failure;
//   - answers gives the client the answer: opening keeps one without content back, resumer has a stream that
//     breaks continued on another replica;
//   - ends counts and logs the end, story becomes the spans;
//   - handoffs chooses for requests that a gateway sends, and follows their answers;
//   - questions answers external callers; stored, adapters and realtime answer the calls that are no choice of one replica for one body.
//
// A Router is safe for concurrent use and keeps no state of its own beyond counters: if anything
// goes wrong in the parts that advise it (tokenizer, index, load), a request that a replica could
// have answered is answered. It knows neither gRPC nor HTTP servers: those are surfaces.
package router
