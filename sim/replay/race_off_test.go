//go:build !race

package replay

import "testing"

// plays marks a test that plays traces for seconds on one goroutine.
func plays(*testing.T) {}

// short is the length of a trace whose runs at once are compared.
func short(n int) int { return n }
