package load

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// anyVersion books whatever else was booked.
const anyVersion = math.MaxUint64

// whole is the weight of a block that counts fully. Weights are fixed-point so that sums of them
// return to exactly zero.
const whole = 1 << 16

// RankLoad is the sum of the bookings on one rank at one moment.
type RankLoad struct {
	// Version grows with each booking; see Book.ReserveIf.
	Version uint64
	// InFlight counts the requests booked and not ended.
	InFlight int
	// Prefilling are the requests among InFlight without a first token.
	Prefilling int
	// PrefillTokens are the uncached prompt tokens that the rank has yet to compute. The request that
	// is first in line counts less as its predicted time passes.
	PrefillTokens float64
	// PrefillTime is the predicted time for them.
	PrefillTime time.Duration
	// Overdue is by how much the first in line has exceeded its predicted time; 0 when it has not.
	Overdue time.Duration
	// Assumed are the unstreamed requests in flight whose prefill counts as done because its predicted time is over, and for no other reason.
	Assumed int
	// DecodeBlocks are the KV blocks in use: blocks that live requests share count once, and a
	// request's own ones decay as it nears its expected end.
	DecodeBlocks float64
	// UsedBlocks are the KV blocks in use, the requests' own ones in full until they end.
	UsedBlocks int64
	// ContextTokens are the prompt and output tokens of the requests in flight.
	ContextTokens int
	// OutputTokens are the tokens that the requests in flight have produced.
	OutputTokens int
}

// rank is the account of one slot. Writers hold mu and publish; View reads the published copy.
type rank struct {
	slot    replica.Slot
	version atomic.Uint64 // bookings so far; grows under mu
	pub     *published    // never changes

	mu sync.Mutex

	closed   bool  // guarded by mu
	bookings list  // in the order of booking; guarded by mu
	queue    list  // bookings with prefill to do, in the order of booking; guarded by mu
	anchor   int64 // since when the first in queue is served; guarded by mu
	tree     tree  // guarded by mu
	sums     sums  // guarded by mu
}

// sums are the totals over a rank's bookings.
type sums struct {
	inFlight, prefilling int64
	assumed              int64
	tokens, nanos        int64 // uncached prefill still to do, as booked
	prompt               int64 // prompt tokens
	own                  int64 // weighted blocks that belong to one booking each
	used                 int64 // the same blocks in full
}

func newRank(slot replica.Slot) *rank {
	rk := &rank{slot: slot, tree: newTree(), bookings: list{kind: inAll}, queue: list{kind: inQueue}}
	rk.pub = &published{rank: rk}
	return rk
}

// add books s, unless the rank is closed or was booked since version.
func (rk *rank) add(s *booking, hashes []blockhash.Hash, version uint64) error {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	if rk.closed {
		return ErrNoRank
	}
	if version != anyVersion && rk.version.Load() != version {
		return ErrConflict
	}
	s.booked = true
	rk.bookings.push(s)
	rk.sums.inFlight++
	rk.sums.prompt += int64(s.promptTokens)
	s.blocks.private = max(0, s.blocks.prompt-int64(len(hashes)))
	rk.tree.insert(s, hashes[:min(int64(len(hashes)), s.blocks.prompt)], rk)
	rk.count(s, 1)
	s.prefill.phase = queued
	if rk.queue.first == nil {
		rk.anchor = s.bookedAt
	}
	rk.queue.push(s)
	rk.sums.prefilling++
	rk.sums.tokens += s.prefill.tokens
	rk.sums.nanos += s.prefill.nanos
	rk.version.Add(1)
	rk.publish()
	return nil
}

// remove takes s off; a second time does nothing.
func (rk *rank) remove(s *booking) {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	if !s.booked {
		return
	}
	now := int64(0)
	if s.prefill.phase == queued {
		now = s.owner.book.now()
	}
	rk.confirm(s, now)
	s.booked = false
	rk.bookings.drop(s)
	rk.count(s, -1)
	rk.tree.remove(s, rk)
	rk.sums.inFlight--
	rk.sums.prompt -= int64(s.promptTokens)
	rk.pub.output.Add(-s.blocks.output)
	rk.publish()
}

// prefilled ends the prefill part of s, and of the unstreamed requests before it: engines prefill in order.
func (rk *rank) prefilled(s *booking, now int64) {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	if !s.booked {
		return
	}
	changed := rk.confirm(s, now)
	for o := s.links[inAll].prev; o != nil && o.prefill.phase != confirmed; o = o.links[inAll].prev {
		if o.prefill.unstreamed {
			changed = rk.confirm(o, now) || changed
		}
	}
	if changed {
		rk.publish()
	}
}

// confirm notes that the prefill of s is over, and reports whether that changed a sum. rk.mu is held.
func (rk *rank) confirm(s *booking, now int64) (changed bool) {
	switch s.prefill.phase {
	case queued:
		rk.leaveQueue(s, now)
	case assumed:
		rk.sums.assumed--
	case confirmed:
		return false
	}
	s.prefill.phase = confirmed
	return true
}

// leaveQueue takes s off the prefill queue, where it is. When it was the first, the next one is
// served from now on. rk.mu is held.
func (rk *rank) leaveQueue(s *booking, now int64) {
	if rk.queue.first == s {
		rk.anchor = now
	}
	rk.queue.drop(s)
	rk.sums.prefilling--
	rk.sums.tokens -= s.prefill.tokens
	rk.sums.nanos -= s.prefill.nanos
}

// settle ends the prefill of unstreamed requests at the head of the queue after their predicted time.
func (rk *rank) settle(now int64) {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	changed := false
	for s := rk.queue.first; s != nil && s.prefill.unstreamed && now >= rk.anchor+s.prefill.nanos; s = rk.queue.first {
		rk.leaveQueue(s, rk.anchor+s.prefill.nanos)
		s.prefill.phase = assumed
		rk.sums.assumed++
		changed = true
	}
	if changed {
		rk.publish()
	}
}

// grow sets the output of s; the owner's lock is held, so output grows in order.
func (rk *rank) grow(s *booking, outputTokens int) {
	b := &s.blocks
	before := b.output
	b.output = int64(outputTokens)
	rk.pub.output.Add(b.output - before)
	crossed := s.blocksAt(b.output) - s.blocksAt(before)
	if crossed == 0 {
		return
	}
	rk.mu.Lock()
	defer rk.mu.Unlock()
	rk.count(s, -1)
	b.begun += crossed
	b.weight = b.decay(b.output)
	rk.count(s, 1)
	rk.publish()
}

// count adds the blocks that s does not share to the sums, or takes them off with a sign of -1. rk.mu is held.
func (rk *rank) count(s *booking, sign int64) {
	rk.sums.own += sign * s.blocks.weighted()
	rk.sums.used += sign * s.blocks.used()
}

// close ends the account and returns the bookings that were booked on it.
func (rk *rank) close() []*booking {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	rk.closed = true
	return rk.bookings.collect(math.MaxInt64)
}

// bookedBefore returns the bookings that were booked before the moment t.
func (rk *rank) bookedBefore(t int64) []*booking {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	return rk.bookings.collect(t)
}
