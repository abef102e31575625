// Package decisionlog remembers the last decisions and how they ended.
//
// A Log is a ring of bounded size, found by decision id and by the client's request id, with an
// optional stream of JSON lines and live subscriptions. Add and Finish never block a
// request: the writer and each subscriber have a bounded queue, and further entries are dropped and counted.
// Decisions are kept as they were handed in and must not be changed afterwards. A
// Log is safe for concurrent use.
package decisionlog
