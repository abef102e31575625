// Package pauses finds out whether an engine aborted an answer that looks whole: vLLM does so with answers of /v1/responses when it is
// paused or put to sleep over HTTP (its development mode).
//
// Before the answer is asked for, a Watch asks the replica whether it can be paused at all, and how many answers it has aborted; at the end
// it compares. Replicas that cannot be paused are remembered for the life of their engine, and are not asked again. Each question is
// bounded in time and size; a replica that does not answer one is taken not to be paused.
package pauses
