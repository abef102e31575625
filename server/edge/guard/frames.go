package guard

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// frames is the pool that a grpc.Server reads DATA frames into. It counts the bytes that are out
// of it in a Ledger, and calls over when they exceed their share.
//
// grpc-go does not return the frames of a call that ends before they were read: those are counted
// until the garbage collector has freed them, which is as long as they take memory.
type frames struct {
	ledger *ledger.Ledger
	over   func()
	small  sync.Pool // of slabs of smallFrame bytes
	large  sync.Pool // of slabs of largeFrame bytes
}

// The sizes of frames: clients send at most 16 KiB in one.
const (
	smallFrame = 4 << 10
	largeFrame = 16 << 10
)

// slab is a buffer of the pool. grpc-go knows it by a pointer to its first field.
type slab struct {
	buf   []byte
	lease *lease
}

// lease says whether a slab is out of the pool. It outlives the slab.
type lease struct {
	size int64
	out  atomic.Bool
}

func (f *frames) newSlab(size int) *slab {
	s := &slab{buf: make([]byte, size), lease: &lease{size: int64(size)}}
	runtime.AddCleanup(s, func(l *lease) {
		if l.out.Load() {
			f.ledger.Passed(l.size)
		}
	}, s.lease)
	return s
}

// Get implements mem.BufferPool.
func (f *frames) Get(length int) *[]byte {
	var s *slab
	switch {
	case length <= smallFrame:
		if s, _ = f.small.Get().(*slab); s == nil {
			s = f.newSlab(smallFrame)
		}
	case length <= largeFrame:
		if s, _ = f.large.Get().(*slab); s == nil {
			s = f.newSlab(largeFrame)
		}
	default:
		s = f.newSlab(length)
	}
	s.buf = s.buf[:length]
	s.lease.out.Store(true)
	if !f.ledger.Arrived(s.lease.size) {
		f.over()
	}
	return &s.buf
}

// Put implements mem.BufferPool.
func (f *frames) Put(p *[]byte) {
	s := (*slab)(unsafe.Pointer(p)) // p points to the first field of a slab: Get made it
	s.lease.out.Store(false)
	f.ledger.Passed(s.lease.size)
	switch s.lease.size {
	case smallFrame:
		f.small.Put(s)
	case largeFrame:
		f.large.Put(s)
	}
}
