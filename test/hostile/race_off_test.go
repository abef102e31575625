//go:build !race

package hostile

import "testing"

// ownProcess marks a test whose router is a process of its own.
func ownProcess(*testing.T) {}
