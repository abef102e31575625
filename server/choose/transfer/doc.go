// Package transfer learns how long KV cache takes from one engine to another.
//
// A Lane is the way from one part of the network to another, or within one. It predicts a start-up time and a time per token: at first
// the times of published measurements, then the times of the transfers that were seen there. Lanes are safe for concurrent use.
package transfer
