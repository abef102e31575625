package load

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Request is what to book.
type Request struct {
	// ID names the reservation; 1 to 256 bytes, unique among the tenant's requests in flight.
	ID string
	// Tenant owns the reservation; empty is a tenant too.
	Tenant string
	// Attempt numbers the tries of one request; a later one replaces an earlier one.
	Attempt uint32
	// Slot is the rank that the request goes to.
	Slot replica.Slot
	// PromptTokens is the prompt's length; 0 when unknown.
	PromptTokens int
	// PrefillTokens are the tokens that the rank must compute because its cache lacks them; at most
	// PromptTokens count.
	PrefillTokens int
	// PrefillTime is how long that is predicted to take on an otherwise idle rank.
	PrefillTime time.Duration
	// Hashes name the prompt's full blocks in order, so that blocks which live requests share count
	// once. The book keeps the slice while any request uses those blocks: it must not change.
	Hashes []blockhash.Hash
	// BlockSize is the rank's block size in tokens; 0 books no blocks.
	BlockSize int
	// ExpectedTokens is the expected output; 0 or less when unknown.
	ExpectedTokens int
	// Lease makes the reservation expire when nothing is reported for so long; negative takes the
	// configured lease. Zero: a stream in this process owns it and releases it.
	Lease time.Duration
	// Again makes a reservation of its own, although the id and attempt have ended or are booked: the earlier booking is void,
	// and its owner's calls have no effect any more.
	Again bool
	// Unstreamed marks a request whose first token is not seen, or may not be reported: its prefill
	// counts as done when its predicted time is over, at the latest, and earlier when a request behind it has its first token or its end.
	Unstreamed bool
}

// Reservation is one request's booking. Its methods are safe for concurrent use and idempotent.
type Reservation struct {
	book   *Book
	shard  *shard
	tenant string
	id     string
	hash   uint64

	deadline    atomic.Int64  // when the lease ends, in the book's time; 0: never
	lastAttempt atomic.Uint32 // set when it ended
	void        atomic.Bool   // it could not be booked

	mu        sync.Mutex
	attempt   uint32        // guarded by mu
	booking   *booking      // the present booking; guarded by mu
	lease     time.Duration // guarded by mu
	prefilled bool          // guarded by mu
	ended     bool          // guarded by mu
	lost      bool          // guarded by mu
	suspended bool          // nothing of it is booked, until it is reported on; guarded by mu

	first booking // the first attempt's booking, so that most reservations are one allocation
}

// ID returns the id that the reservation was booked under.
func (r *Reservation) ID() string { return r.id }

// Attempt returns the attempt that is booked now.
func (r *Reservation) Attempt() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attempt
}

// PrefillDone reports the first token: the rank has no more prefill work for this request.
func (r *Reservation) PrefillDone() Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count(callPrefill, r.prefillDone())
}

// Progress reports the output tokens so far. It implies PrefillDone. Reports within
// a block cost no more than a counter, so every chunk may report.
func (r *Reservation) Progress(outputTokens int) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count(callProgress, r.progress(outputTokens))
}

// Renew keeps a leased reservation for another lease without news.
func (r *Reservation) Renew() Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count(callRenew, r.renewed())
}

// Release ends the booking. Only the first call has an effect.
func (r *Reservation) Release() Outcome {
	r.mu.Lock()
	out := r.release()
	r.count(callRelease, out)
	r.mu.Unlock()
	if out == Applied {
		r.book.gone(r, &r.book.counts.released)
	}
	return out
}

// The methods below expect r.mu to be held.

func (r *Reservation) prefillDone() Outcome {
	if out := r.status(); out != Applied {
		return out
	}
	if out := r.restore(); out != Applied {
		return out
	}
	r.renew(r.book.now())
	if r.prefilled {
		return Duplicate
	}
	r.prefilled = true
	r.booking.rank.prefilled(r.booking, r.book.now())
	return Applied
}

func (r *Reservation) progress(outputTokens int) Outcome {
	if out := r.status(); out != Applied {
		return out
	}
	if out := r.restore(); out != Applied {
		return out
	}
	r.renew(r.book.now())
	switch s := r.booking; {
	case outputTokens < int(s.blocks.output):
		return Stale
	case outputTokens == int(s.blocks.output):
		return Duplicate
	default:
		if !r.prefilled {
			r.prefilled = true
			s.rank.prefilled(s, r.book.now())
		}
		s.rank.grow(s, outputTokens)
		return Applied
	}
}

func (r *Reservation) renewed() Outcome {
	out := r.status()
	if out == Applied {
		r.renew(r.book.now())
	}
	return out
}

func (r *Reservation) release() Outcome {
	if r.ended {
		return Ended
	}
	r.ended = true
	r.lastAttempt.Store(r.attempt)
	if !r.lost {
		r.detach()
	}
	return Applied
}

// status reports whether the reservation is booked; Applied when it is.
func (r *Reservation) status() Outcome {
	switch {
	case r.ended:
		return Ended
	case r.lost:
		return Lost
	}
	return Applied
}

// attach books req on rk as r's present booking.
func (r *Reservation) attach(rk *rank, req *Request, version uint64, now int64) error {
	s := &r.first
	if r.booking != nil {
		s = new(booking)
	}
	s.fill(r, rk, req, now)
	if err := rk.add(s, req.Hashes, version); err != nil {
		return err
	}
	r.booking, r.attempt, r.prefilled, r.lost, r.suspended = s, req.Attempt, false, false, false
	r.renew(now)
	return nil
}

func (r *Reservation) detach() { r.booking.rank.remove(r.booking) }

// renew moves the lease's end.
func (r *Reservation) renew(now int64) {
	if r.lease > 0 {
		r.deadline.Store(now + int64(r.lease))
	} else {
		r.deadline.Store(0)
	}
}

func (r *Reservation) count(c call, out Outcome) Outcome {
	r.book.counts.calls[c][out].Add(1)
	return out
}

// Suspend removes the booking from its rank, because the engine reports no such request. The reservation remains:
// its next report books it again, without prefill. It returns false for one that has reported or is not booked.
func (r *Reservation) Suspend() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status() != Applied || r.prefilled || r.suspended {
		return false
	}
	r.suspended = true
	r.detach()
	r.book.counts.Doubted.Add(1)
	return true
}

// restore books a suspended reservation again after a report showed that its request exists. r.mu is held.
func (r *Reservation) restore() Outcome {
	if !r.suspended {
		return Applied
	}
	r.suspended = false
	rk := r.booking.rank
	if err := rk.add(r.booking, nil, anyVersion); err != nil {
		r.lost = true
		return Lost
	}
	rk.prefilled(r.booking, r.book.now())
	return Applied
}
