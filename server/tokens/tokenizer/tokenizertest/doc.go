// Package tokenizertest is a real tokenizer behind a fake replica, for tests and benchmarks.
//
// BPE is a byte-level byte-pair encoder with special tokens, trained on a text, whose merges
// reach over line ends and spaces as those of current models do. Templates render messages as
// well-known chat templates do, with their traps. Replica serves both over HTTP in the shapes
// of vLLM's /tokenize, /detokenize and /render, with the timing and faults that it is told to
// have. BPE and templates are pure; a Replica is safe for concurrent use.
package tokenizertest
