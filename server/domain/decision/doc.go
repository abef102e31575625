// Package decision holds the words for a choice of replica and its outcome.
//
// A Decision lists every Candidate (one per rank of each replica in the pool) with the facts known about it, the predicted
// times, its cost under the policy and, when it could not be
// chosen, the Veto; records have the list packed. The record holds all inputs of the choice, so that package selector can
// recompute it. An Outcome says how the request ended. All types are plain values; a Decision
// handed out is never changed afterwards and may be shared. Their JSON is the contract's
// (proto/kvpilot/v1/decision.proto).
package decision
