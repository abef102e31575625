//go:build !linux

package kvindex

// hugeSlice makes a zeroed slice.
func hugeSlice(n int) []uint64 { return make([]uint64, n) }

// discard leaves the slice to the garbage collector.
func discard([]uint64) {}
