// Package transfer learns how long KV cache takes from one engine to another, and from the tiers below an engine's GPU to the GPU.
//
// A Lane is the way from one part of the network to another, or within one. It predicts a start-up time and a time per token: at first
// the times of published measurements, then the times of the transfers that were seen there. A Tier of a rank has the lane of its kind of engine, and the share of the blocks in it that the engine
// has found. Both are safe for concurrent use.
package transfer
