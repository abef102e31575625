//go:build !linux

package kvindex

// hugeSlice makes a zeroed slice.
func hugeSlice(n int) []uint64 { return make([]uint64, n) }
