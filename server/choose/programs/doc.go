// Package programs keeps the account of the KV memory that sessions need between their calls.
//
// A program is a session that returns soon: an agent that calls a tool and continues with the same context. Its context
// is worth its memory during the gap. When the contexts of all programs exceed the memory of their ranks, each call evicts
// the context of another program, which then costs a whole prefill that evicts the next one: the fleet collapses. A Ledger
// prevents it. Per rank it sums up the tokens of the programs in flight, and the tokens of programs in a gap times the chance that
// they return. A new program is admitted where its context fits. When a rank's programs outgrow its memory, whole programs
// lose their place there, the cheapest first; a program without a place is admitted like a new one.
//
// A session that a program starts, a subagent's, is its child. While a child is at work its parent keeps its place, and a child is
// admitted before all others: the work that it waits for would wait for it.
//
// The chance is learned: per class of sessions (a tenant's), whether they return within the horizon, and after how long;
// per session, whether it did so far. A session that is not likely to return soon, a chat, is never held back.
//
// The package is pure: time is an argument, and it starts nothing. A Ledger is safe for concurrent use.
// docs/adr/030-programs.md has the reasons and the experiments.
package programs
