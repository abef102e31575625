package load

import (
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const (
	shardCount = 64
	maxIDBytes = 256
)

// Book holds all reservations and the load of each rank. The zero value is not usable; call New.
type Book struct {
	config Config
	log    *slog.Logger
	scale
	seed   maphash.Seed
	counts counts

	live      atomic.Int64
	onExpired atomic.Pointer[func(Key)]

	shards [shardCount]shard

	ranksMu sync.Mutex                   // serialises AddRank and RemoveRank
	ranks   atomic.Pointer[[]*published] // by slot, nil for none
}

// New returns an empty book. config must be valid. It starts nothing; Run ends leases that are not renewed.
func New(config Config, params Params) *Book {
	clock := params.Scope.Clock()
	b := &Book{config: config, log: params.Scope.Log(), scale: scale{clock: clock, start: clock.Now()}, seed: maphash.MakeSeed()}
	for i := range b.shards {
		b.shards[i].open(share(config.Remembered, i))
	}
	b.ranks.Store(&[]*published{})
	b.observe(params)
	return b
}

// share is the part of total that falls to shard i.
func share(total, i int) int {
	n := total / shardCount
	if i < total%shardCount {
		n++
	}
	return n
}

// AddRank opens an account for slot. A slot that has one already keeps it.
func (b *Book) AddRank(slot replica.Slot) {
	b.ranksMu.Lock()
	defer b.ranksMu.Unlock()
	old := *b.ranks.Load()
	if int(slot) < len(old) && old[slot] != nil {
		return
	}
	table := make([]*published, max(len(old), int(slot)+1))
	copy(table, old)
	table[slot] = newRank(slot).pub
	b.ranks.Store(&table)
}

// RemoveRank closes the account of slot: its load is gone at once and its reservations are Lost
// until their owners book them elsewhere or release them. It returns how many there were.
func (b *Book) RemoveRank(slot replica.Slot) int {
	b.ranksMu.Lock()
	old := *b.ranks.Load()
	if int(slot) >= len(old) || old[slot] == nil {
		b.ranksMu.Unlock()
		return 0
	}
	table := make([]*published, len(old))
	copy(table, old)
	gone := table[slot]
	table[slot] = nil
	b.ranks.Store(&table)
	b.ranksMu.Unlock()
	return b.lose(gone.rank.close())
}

// Forget marks Lost the reservations on slot before the given moment, because the engine process
// that had it died. It returns how many reservations that were.
func (b *Book) Forget(slot replica.Slot, before time.Time) int {
	rk := b.rank(slot)
	if rk == nil {
		return 0
	}
	return b.lose(rk.bookedBefore(b.since(before)))
}

// lose takes bookings off their rank and marks their reservations.
func (b *Book) lose(bookings []*booking) int {
	n := 0
	for _, s := range bookings {
		r := s.owner
		r.mu.Lock()
		if r.booking == s && !r.ended && !r.lost {
			r.lost = true
			r.detach()
			n++
		}
		r.mu.Unlock()
	}
	b.counts.lost.Add(int64(n))
	return n
}

// View returns the load of slot as it stands at now, without a lock. A slot without an account
// has no load.
func (b *Book) View(slot replica.Slot, now time.Time) RankLoad {
	var load RankLoad
	v := b.ViewAll(now)
	v.Read(slot, &load)
	return load
}

// Views are the loads of all ranks at one moment. Unlike View, it reads the clock's scale and the list of ranks once.
type Views struct {
	ranks []*published
	now   int64
}

// ViewAll returns the loads as they stand at now; each is read when it is asked for.
func (b *Book) ViewAll(now time.Time) Views { return Views{ranks: *b.ranks.Load(), now: b.since(now)} }

// Read sets load to the result of Book.View for the slot.
func (v *Views) Read(slot replica.Slot, load *RankLoad) {
	if int(slot) >= len(v.ranks) || v.ranks[slot] == nil {
		*load = RankLoad{}
		return
	}
	v.ranks[slot].view(v.now, load)
}

// Approach brings the account of the slot near, before Read; see chooser.
func (v *Views) Approach(slot replica.Slot) {
	if int(slot) < len(v.ranks) && v.ranks[slot] != nil {
		v.ranks[slot].seq.Load()
		v.ranks[slot].anchor.Load() // in the other line
	}
}

// Live is the number of reservations that have not ended.
func (b *Book) Live() int { return int(b.live.Load()) }

// Reserve books a request. When the same id and attempt is booked already, it returns that
// reservation, whose Slot may differ from the one asked for. A later attempt of a booked id moves
// the reservation: the old rank's load is freed and the new one's booked.
func (b *Book) Reserve(req Request) (*Reservation, error) {
	return b.reserve(req, anyVersion)
}

// ReserveIf is Reserve on the condition that version is still the rank's RankLoad.Version;
// otherwise it books nothing and returns ErrConflict. Releases and progress do not change the
// version: they make the rank no worse than it looked.
func (b *Book) ReserveIf(version uint64, req Request) (*Reservation, error) {
	return b.reserve(req, version)
}

func (b *Book) reserve(req Request, version uint64) (*Reservation, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	rk := b.rank(req.Slot)
	if rk == nil {
		return nil, ErrNoRank
	}
	if version != anyVersion && rk.version.Load() != version {
		b.counts.conflicts.Add(1)
		return nil, ErrConflict
	}
	sh, hash := b.shard(req.Tenant, req.ID)
	for {
		r, fresh, err := b.claim(sh, hash, &req)
		if err != nil {
			return nil, err
		}
		again, err := b.settle(r, fresh, rk, &req, version)
		r.mu.Unlock()
		switch {
		case again: // it ended and is about to be removed: do that here and look again
			sh.end(r)
		case err == nil:
			return r, nil
		default:
			if fresh {
				sh.end(r)
				b.live.Add(-1)
			}
			if errors.Is(err, ErrConflict) {
				b.counts.conflicts.Add(1)
			}
			return nil, err
		}
	}
}

// settle books req on r, which is fresh or has the same id. r.mu is held.
func (b *Book) settle(r *Reservation, fresh bool, rk *rank, req *Request, version uint64) (again bool, err error) {
	switch {
	case fresh:
		if err := r.attach(rk, req, version, b.now()); err != nil {
			r.void.Store(true)
			r.ended = true
			return false, err
		}
	case r.ended:
		return true, nil
	case req.Attempt < r.attempt:
		return false, ErrStale
	case req.Again:
		r.release()
		b.live.Add(-1)
		b.counts.moved.Add(1)
		return true, nil
	case req.Attempt > r.attempt:
		return false, b.move(r, rk, req, version)
	default:
		r.renew(b.now())
	}
	return false, nil
}

// claim finds the live reservation of req.ID or makes it, and returns it with its mu held.
func (b *Book) claim(sh *shard, hash uint64, req *Request) (r *Reservation, fresh bool, err error) {
	sh.mu.Lock()
	if r = sh.live[hash]; r != nil {
		sh.mu.Unlock()
		if r.id != req.ID || r.tenant != req.Tenant {
			return nil, false, fmt.Errorf("%w: the id's hash collides with another id, use a new id", errInvalid)
		}
		r.mu.Lock()
		return r, false, nil
	}
	if attempt, known := sh.ended.find(hash); known && req.Attempt <= attempt && !req.Again {
		sh.mu.Unlock()
		return nil, false, ErrEnded
	}
	if b.live.Add(1) > int64(b.config.MaxReservations) {
		b.live.Add(-1)
		sh.mu.Unlock()
		b.counts.full.Add(1)
		return nil, false, ErrFull
	}
	r = &Reservation{book: b, shard: sh, tenant: req.Tenant, id: req.ID, hash: hash, lease: b.config.leaseFor(req.Lease)}
	r.mu.Lock()
	sh.live[hash] = r
	sh.mu.Unlock()
	return r, true, nil
}

// move books r again under a later attempt. r.mu is held.
func (b *Book) move(r *Reservation, rk *rank, req *Request, version uint64) error {
	old, wasLost := r.booking, r.lost
	if err := r.attach(rk, req, version, b.now()); err != nil {
		return err
	}
	if !wasLost {
		old.rank.remove(old)
	}
	r.lease = b.config.leaseFor(req.Lease)
	r.renew(b.now())
	b.counts.moved.Add(1)
	return nil
}

func (b *Book) rank(slot replica.Slot) *rank {
	table := *b.ranks.Load()
	if int(slot) >= len(table) || table[slot] == nil {
		return nil
	}
	return table[slot].rank
}

// shard returns the part of the id map that a tenant's id belongs to, and the hash of both, which is not 0.
func (b *Book) shard(tenant, id string) (*shard, uint64) {
	hash := maphash.String(b.seed, id)
	if tenant != "" {
		hash ^= bits.RotateLeft64(maphash.String(b.seed, tenant), 29)
	}
	hash |= 1 << 63
	return &b.shards[hash%shardCount], hash
}

// scale is the time since the book was made, in nanoseconds, from a clock that does not go back.
type scale struct {
	clock scope.Clock
	start time.Time
}

func (s *scale) now() int64 { return s.since(s.clock.Now()) }

// Clock is the book's time.
func (s *scale) Clock() scope.Clock { return s.clock }

func (s *scale) since(t time.Time) int64 { return int64(t.Sub(s.start)) }

func (r *Request) check() error {
	switch {
	case r.ID == "" || len(r.ID) > maxIDBytes:
		return fmt.Errorf("%[1]w: the id must have 1 to %[3]d bytes, not %[2]d", errInvalid, len(r.ID), maxIDBytes)
	case r.PromptTokens < 0 || r.PrefillTokens < 0:
		return fmt.Errorf("%w: token counts are negative", errInvalid)
	}
	r.PrefillTokens = min(r.PrefillTokens, r.PromptTokens)
	return nil
}
