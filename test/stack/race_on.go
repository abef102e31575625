//go:build race

package stack

// Race reports whether this is built with the race detector, with which a stream costs several times as much.
const Race = true
