// Package past has the policies' memory of earlier requests: the rank of each session, rings, trees of texts, and the turn of round-robin. The memory of
// one model is its Trail.
package past
