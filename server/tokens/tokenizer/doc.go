// Package tokenizer turns prompts into the token ids that the engine will see, and never
// fails a request for it.
//
// Encode answers from the cheapest source that is exact: ids in the body, the exact cache, the
// known beginning of a conversation, or a replica (package remote). Whatever goes wrong there
// is an Encoding with source none and a reason; only the client's own fault is an error, a
// *ClientFault with the engine's answer. Ids of a partial encoding are a prefix of the full
// ones: no block is ever keyed by a guess. ApproximateHashes keys text when there are no ids.
//
// Where to read what: encode and encoding are the way of a prompt and its result, question and flight the calls to
// replicas, key, entry and truncate the exact cache; conversation, structure, root, delta, complete and answer are
// known beginnings and the knowledge about a model's template; guard and handoff are about giving ids to engines.
// Below it: remote asks replicas, convert makes chat requests of other formats, parity compares ids with the engines'.
//
// A Pool is safe for concurrent use; Run gives it its background work. Ids, hashes and media
// of an Encoding are shared and read-only. Choosing a replica and forwarding bytes are left to
// others: Handoff says whether ids may be given to an engine, package openai writes them.
package tokenizer
