// Package enginesim is a simulated vLLM replica: a real HTTP server with vLLM's routes, answers,
// errors and SSE bytes, a real block cache, real KV events over ZMQ with replay, and modelled
// time for prefill, decode and queueing. docs/simulator.md is its manual.
//
// An Engine is made from listeners that are handed in; Run serves them until its context ends.
// Faults makes it slow, silent, wrong or dead on demand; Restart begins a new engine life. All
// methods are safe to call at once.
//
// Where to read what:
//
//   - engine, life, port: the process, the state that a restart loses, and the listeners that outlive it;
//   - config, features: the settings of a replica, and the differences between vLLM versions;
//   - routes: every path; routes_*: the handlers of one dialect or surface each;
//   - generation, choice, sampling, tools: one request's answers while the engine makes them, in the words of prose;
//   - answer, text, sse, usage, logprobs, errors: how answers are written;
//   - faults, records: faults on demand, and the requests received.
//
// Below it: core drives the step machine of package enginemodel in real time, feed writes its KV events, vocab is
// the tokenizer and the chat template, websocket the frames of /v1/realtime.
//
// Its shapes follow answers captured from real replicas (0.12.0 and 0.32.0) and the versions'
// sources; docs/vllm-compatibility.md says what was compared. It computes no attention: the
// text is made of words chosen by the prompt's hash, so equal prompts have equal answers.
package enginesim
