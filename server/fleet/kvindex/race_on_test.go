//go:build race

package kvindex_test

// alone is how many steps a play on one goroutine has of n: the detector finds nothing more in all of them, and `make test` plays
// them whole without it.
func alone(n int) int { return n / 6 }
