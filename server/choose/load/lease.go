package load

import (
	"context"
	"sync/atomic"
	"time"
)

// Key names one attempt of one reservation, as lifecycle calls from outside do. Ids of different tenants are different
// ids: a call with another tenant's finds nothing.
type Key struct {
	Tenant  string
	ID      string
	Attempt uint32
}

// sweepEvery is how often leases are looked at: a lease ends at most so much late.
const sweepEvery = time.Second

// Find returns the live reservation with this id of the tenant, of whatever attempt.
func (b *Book) Find(tenant, id string) (*Reservation, bool) {
	sh, hash := b.shard(tenant, id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.find(hash, tenant, id)
	return r, r != nil
}

// Renew is Reservation.Renew by key.
func (b *Book) Renew(key Key) Outcome {
	_, out := b.call(callRenew, key, (*Reservation).renewed)
	return out
}

// gone finishes the end of a reservation that release ended.
func (b *Book) gone(r *Reservation, counter *atomic.Int64) {
	r.shard.end(r)
	b.live.Add(-1)
	counter.Add(1)
}

// call finds the reservation, checks the attempt and runs do under the reservation's lock.
func (b *Book) call(c call, key Key, do func(*Reservation) Outcome) (*Reservation, Outcome) {
	sh, hash := b.shard(key.Tenant, key.ID)
	sh.mu.Lock()
	r := sh.find(hash, key.Tenant, key.ID)
	attempt, remembered := sh.ended.find(hash)
	sh.mu.Unlock()
	out := Unknown
	switch {
	case r != nil:
		r.mu.Lock()
		switch {
		case key.Attempt == r.attempt:
			out = do(r)
		case key.Attempt < r.attempt:
			out = Stale
		}
		r.mu.Unlock()
	case remembered && key.Attempt <= attempt:
		out = Ended
	}
	b.counts.calls[c][out].Add(1)
	return r, out
}

// Run ends leases that were not renewed, until ctx ends.
func (b *Book) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			b.sweep(b.now())
		}
	}
}

// OnExpired calls f for each reservation whose lease ran out, after it ended. f is called
// without a lock, from Run; it replaces the one before it.
func (b *Book) OnExpired(f func(Key)) { b.onExpired.Store(&f) }

// sweep releases the reservations whose lease ended before now and returns how many.
func (b *Book) sweep(now int64) int {
	expired := 0
	var due []*Reservation
	for i := range b.shards {
		sh := &b.shards[i]
		due = due[:0]
		sh.mu.Lock()
		for _, r := range sh.live {
			if d := r.deadline.Load(); d != 0 && d <= now {
				due = append(due, r)
			}
		}
		sh.mu.Unlock()
		for _, r := range due {
			if b.expire(r, now) {
				expired++
			}
		}
	}
	if expired > 0 {
		b.log.Info("leases expired", "count", expired)
	}
	return expired
}

// expire ends r unless it was renewed in the meantime.
func (b *Book) expire(r *Reservation, now int64) bool {
	r.mu.Lock()
	d := r.deadline.Load()
	over := d != 0 && d <= now && r.release() == Applied
	key := Key{r.tenant, r.id, r.attempt}
	r.mu.Unlock()
	if !over {
		return false
	}
	b.gone(r, &b.counts.expired)
	if f := b.onExpired.Load(); f != nil {
		(*f)(key)
	}
	return true
}
