// Package indexbench measures package kvindex with request traces.
//
// Run plays a trace against simulated ranks, each with an LRU block cache that announces the stored and evicted blocks the way
// vLLM does, and measures how fast the index applies those events
// and answers lookups. Applying an event returns when it is visible, so that no work is left
// to drain when the clock stops.
package indexbench
