// Package remote asks engines to tokenize: every healthy replica of a model is an endpoint.
//
// A Pool sends one question (a Job) to the least loaded endpoint, asks a second one when the
// first is slower than it was for 95 of 100 questions of that size, retries only where it may help
// (connection errors, 408, 429 and 5xx, with Retry-After honoured), and remembers the routes that each replica has: /render
// where it exists, /tokenize with the same meaning elsewhere. An
// endpoint that fails repeatedly is left alone for a while; a client's own mistake is never
// such a failure. Endpoints expire unused.
//
// A Pool is safe for concurrent use; its Run probes and expires. No lock is held over I/O,
// and the caller's cancellation reaches the HTTP call. It leaves caching, coalescing and the
// choice of what to do without ids to package tokenizer.
package remote
