// Package replay plays a trace of requests over modelled vLLM replicas and says how well each
// policy chose: mean and tail of the time to the first token, hit rate, saturation, imbalance,
// against an oracle with replicas that share one cache.
//
// It is a discrete-event simulation: time is virtual, runs are seeded and repeatable, and one
// run uses one core. The choice is made by the product's own code (package chooser with its
// selector, hold queue, load book and index), which is handed the virtual clock. The engines are
// modelled (package enginemodel): continuous batching with chunked prefill, attention's square
// term, an LRU block cache shared by prompts and outputs, first come first served. So are the
// rules of other routers (rivals.go).
// docs/quality.md explains the model and keeps the results.
package replay
