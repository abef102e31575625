// Package selector is the choice itself: which of a decision's candidates should serve.
//
// Choose reads the inputs that a decision.Decision holds, gives each candidate its cost under
// the decision's policy, and picks: the lowest cost, ties by dice that the decision's seed
// throws, or a draw when the policy or a temperature asks for one. It is pure: the same inputs
// give the same choice, so Recompute can check a recorded decision. Filter gives the vetoes.
// Ring and Tree are the two structures that need memory between requests: the consistent-hash
// ring (immutable) and the text prefix tree (safe for concurrent use). Clock, load and index
// are other packages' and come in as numbers.
package selector
