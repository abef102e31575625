// Package feed writes the simulated engine's KV cache events in the payload format of a vLLM
// version: msgpack, with events as arrays up to 0.23 and as maps from 0.24 on.
//
// Encode is pure. Framing, numbering and replay are package zmtp's work.
package feed
