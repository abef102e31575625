// Package conduct compares the answers of a rank with its equals' answers.
//
// A rank is fast by its own account: its first tokens, its KV events and its counters are its word. Its answers are evidence. A Rank
// collects three kinds of it:
//
//   - pace: how many tokens the rank gave to each stream, and how many an equal would have given under the same load;
//   - emptiness: answers without a token, where another replica gave some;
//   - claims: how much of the prompts its answers show as cached, and how much of them it claimed to hold.
//
// A Fleet judges all ranks a few times a second. Every judgement is relative: a rank is compared with the median of the others of its
// kind, or, where there are none, of its model. So a mistake that concerns all ranks (a wrong prior, a slow router, an engine that counts
// no cached tokens) convicts none of them, and a rank without equals is never convicted.
//
// A suspicion costs the rank, never the request: it is a price in seconds, and a share of the overlap that does not count. A rank that is
// avoided gets a probe now and then, so that it can clear itself.
//
// All types are safe for concurrent use. Drag and About take no lock. The package performs no I/O and reads no clock: times are passed in.
package conduct
