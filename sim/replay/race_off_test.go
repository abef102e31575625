//go:build !race

package replay

import "testing"

// plays marks a test that plays traces for seconds on one goroutine.
func plays(*testing.T) {}
