//go:build linux

package kvindex

import (
	"runtime"
	"syscall"
	"unsafe"
)

const (
	hugePage = 2 << 20
	// hugeWorth is the size from which asking pays for the call.
	hugeWorth = 128 << 10
)

// hugeSlice makes a zeroed slice and asks the kernel to back its surroundings with huge
// pages, which halves the cost of random access. The request is advice: where it is refused,
// the slice is an ordinary one. The range is rounded outwards, into the same (64 MiB aligned)
// arena of the heap, because neighbours are tables as well.
func hugeSlice(n int) []uint64 {
	s := make([]uint64, n)
	size := uintptr(n) * 8
	if size < hugeWorth {
		return s
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(s)))
	first := base &^ (hugePage - 1)
	last := (base + size + hugePage - 1) &^ (hugePage - 1)
	const adviseHugePage = 14
	// A refusal changes nothing but speed.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, first, last-first, adviseHugePage)
	return s
}

// discard gives the memory of a large slice back to the system at once. The slice MUST NOT be used any more, by anyone:
// its content is lost. Without this, the tables that a growing index has outgrown stay resident until the garbage
// collector comes, as much again as the index itself.
func discard(s []uint64) {
	size := uintptr(cap(s)) * 8
	if size < hugeWorth {
		return
	}
	page := uintptr(syscall.Getpagesize())
	base := uintptr(unsafe.Pointer(unsafe.SliceData(s)))
	first, last := (base+page-1)&^(page-1), (base+size)&^(page-1) // neighbours stay
	// A refusal costs memory only.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, first, last-first, syscall.MADV_DONTNEED)
	runtime.KeepAlive(s)
}
