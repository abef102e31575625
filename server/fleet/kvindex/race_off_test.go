//go:build !race

package kvindex_test

// alone is how many steps a play on one goroutine has of n.
func alone(n int) int { return n }
