// Package direct answers calls that are not one request to one chosen replica: about the models, about a stored response, which only the replica that
// has it can answer, for LoRA adapters, which all replicas of a pool load, and WebSockets.
//
// Its types are safe for concurrent use, and keep no state.
package direct
