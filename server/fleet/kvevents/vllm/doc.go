// Package vllm decodes the payloads of vLLM's KV event publisher, every form from 0.9 on, into
// the words of package kvblock.
//
// A Decoder turns one payload into one Batch. It decides nothing until the whole payload has
// been read, so a payload is either understood or refused; unknown tags, fields and trailing
// elements are skipped and counted, because engines add some in most releases. Everything in a
// Batch points into the Decoder's buffers or the payload and is valid until the next Decode;
// in the steady state nothing is allocated. A Decoder serves one goroutine at a time.
//
// Numbers in the payload never make memory grow beyond a fixed multiple of the payload, and
// the Max constants bound the contents of one payload.
package vllm
