// Package splits shares the requests for a model between sides, such as a stable version and a canary, and compares them.
//
// A split has sides with weights. Splits.Assign picks a request's side by the request's key, so that a session stays on its side, and moves
// as few sessions as possible when weights change. The caller reports each request's end to its Assignment; Splits.List returns what both
// sides did in the last hour. The first side with the largest weight is the baseline, and each other side is compared with it.
//
// With Config.StepBack a side that is clearly worse than the baseline steps back: it gets no further requests until an operator sends it
// forward again (Splits.Set). The rule is in judge.go. It never sends a side forward by itself, so that it cannot flap.
//
// All methods are safe for concurrent use. Memory is bounded: mostSplits splits, each with at most mostSides sides.
package splits
