// Package enginesim is a simulated vLLM replica: a real HTTP server with vLLM's routes, answers,
// errors and SSE bytes, a real block cache, real KV events over ZMQ with replay, and modelled
// time for prefill, decode and queueing. docs/simulator.md is its manual.
//
// An Engine is made from listeners that are handed in; Run serves them until its context ends.
// Faults makes it slow, silent, wrong or dead on demand; Restart begins a new engine life. All
// methods are safe to call at once.
//
// Its shapes follow answers captured from real replicas (0.12.0 and 0.32.0) and the versions'
// sources; docs/vllm-compatibility.md says what was compared. It computes no attention: the
// text is made of words chosen by the prompt's hash, so equal prompts have equal answers.
package enginesim
