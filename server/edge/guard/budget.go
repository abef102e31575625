package guard

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// Budget counts the bytes of the request bodies that are in memory, of all listeners together.
type Budget struct {
	limit int64
	held  atomic.Int64
}

// NewBudget makes a Budget of at most limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Take counts n more bytes. It counts nothing and returns an error when they exceed the limit.
func (b *Budget) Take(n int64) error {
	if b.held.Add(n) > b.limit {
		b.held.Add(-n)
		return errFull()
	}
	return nil
}

// Give counts n bytes less.
func (b *Budget) Give(n int64) { b.held.Add(-n) }

// force counts n bytes that are in memory already and reports whether the limit holds.
func (b *Budget) force(n int64) bool { return b.held.Add(n) <= b.limit }

func (b *Budget) full() bool { return b.held.Load() >= b.limit }

func errFull() *apierror.Error {
	return apierror.New(apierror.Overloaded, "the memory for request bodies is used up (gateway.max_bodies_bytes)", nil, apierror.WithRetryAfter(time.Second))
}
