// Package router takes one request from its prompt to its last byte.
//
// Router.Serve reads the body, gets the prompt's token ids, lets the chooser decide and reserve,
// and streams the chosen replica's answer to the caller's Sink. Before the first byte it may retry on
// another replica; after it, another replica may resume a stream of plain text, where the operator allows
// that. Choose does the same up to the reservation and hands that to
// the caller, which reports the rest through the lifecycle methods.
//
// A file knows only files below it. From the lowest to the highest:
//
//   - the words: call, question, errors, settings, upload, request, attempt (with the delivery of an answer);
//   - intake makes a request of a call: accounts hold the tenant to its limits, reader reads the body, isolate gives it its salt, sides puts
//     it on the side of a split, places finds the replicas that can serve it, encoder gets its token ids;
//   - dispatcher makes an attempt: picker has the chooser decide, sender sends the request, splitter has a prompt computed elsewhere,
//     refusals pauses a replica that answers 429 or 503 and words that for the client, blame finds the party at fault for a failure;
//   - retrier makes attempts until one has answered, and decides whether another replica is tried;
//   - answers gives the client the answer; resumer has a stream that breaks continued on another replica;
//   - requestEnds counts and logs the end;
//   - handoffs chooses for requests that a gateway sends, and follows their answers; advisor answers external callers; storedCalls,
//     adapters and realtime answer the other calls;
//   - Router joins them, and none refers to it.
//
// Parts that need no request are packages: salts (the cache_salt of a tenant), pools (the pools of a view of the registry), opening (the
// beginning of an answer), pauses (answers that an engine aborted), tunnel (the bytes of a switched connection), story (the steps that
// become spans).
//
// A Router is safe for concurrent use and keeps no state of its own beyond counters: if anything
// goes wrong in the parts that advise it (tokenizer, index, load), a request that a replica could
// have answered is answered. It knows neither gRPC nor HTTP servers: those are surfaces.
package router
