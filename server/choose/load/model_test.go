package load

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// model is the simplest correct book: everything is recomputed from a list of what lives.
type model struct {
	ranks map[replica.Slot]bool
	live  []*modelReservation // in the order of booking
	ended map[string]uint32
	heads map[replica.Slot]time.Time // since when the first in line is served
}

type modelReservation struct {
	req       Request
	prefilled bool // reported
	queued    bool
	assumed   bool // prefilled by its predicted time alone
	lost      bool
	output    int
	weight    float64
	deadline  time.Time
}

func (m *model) find(id string) *modelReservation {
	for _, r := range m.live {
		if r.req.ID == id {
			return r
		}
	}
	return nil
}

func (m *model) queue(slot replica.Slot) []*modelReservation {
	var q []*modelReservation
	for _, r := range m.live {
		if r.req.Slot == slot && r.queued && !r.lost {
			q = append(q, r)
		}
	}
	return q
}

func (m *model) leave(r *modelReservation, now time.Time) {
	if !r.queued {
		return
	}
	if m.queue(r.req.Slot)[0] == r {
		m.heads[r.req.Slot] = now
	}
	r.queued = false
}

// settle ends the prefill of unstreamed requests whose predicted time is over, as a look does.
func (m *model) settle(slot replica.Slot, now time.Time) {
	for {
		q := m.queue(slot)
		if len(q) == 0 || !q[0].req.Unstreamed {
			return
		}
		done := m.heads[slot].Add(q[0].req.PrefillTime)
		if now.Before(done) {
			return
		}
		m.leave(q[0], done)
		q[0].assumed = true
	}
}

// prefilled ends the prefill of r and of the unstreamed requests before it.
func (m *model) prefilled(r *modelReservation, now time.Time) {
	r.prefilled = true
	for _, o := range m.live {
		if o == r || o.req.Slot == r.req.Slot && o.req.Unstreamed && !o.lost {
			m.leave(o, now)
			o.assumed = false
		}
		if o == r {
			return
		}
	}
}

func (m *model) reserve(req Request, now time.Time) error {
	if !m.ranks[req.Slot] {
		return ErrNoRank
	}
	r := m.find(req.ID)
	last, known := m.ended[req.ID]
	switch {
	case r == nil && known && req.Attempt <= last:
		return ErrEnded
	case r != nil && req.Attempt < r.req.Attempt:
		return ErrStale
	case r != nil && req.Attempt == r.req.Attempt:
		m.renew(r, now)
		return nil
	case r != nil && !r.lost:
		if len(m.queue(req.Slot)) == 0 {
			m.heads[req.Slot] = now
		}
		m.leave(r, now)
	}
	if len(m.queue(req.Slot)) == 0 {
		m.heads[req.Slot] = now
	}
	m.live = slices.DeleteFunc(m.live, func(o *modelReservation) bool { return o == r })
	fresh := &modelReservation{req: req, queued: true, weight: 1}
	m.renew(fresh, now)
	m.live = append(m.live, fresh)
	return nil
}

func (m *model) renew(r *modelReservation, now time.Time) {
	if r.req.Lease > 0 {
		r.deadline = now.Add(r.req.Lease)
	}
}

// report does what the three reports have in common.
func (m *model) report(key Key, now time.Time, do func(*modelReservation) Outcome) Outcome {
	r := m.find(key.ID)
	if r == nil {
		if last, known := m.ended[key.ID]; known && key.Attempt <= last {
			return Ended
		}
		return Unknown
	}
	switch {
	case key.Attempt < r.req.Attempt:
		return Stale
	case key.Attempt > r.req.Attempt:
		return Unknown
	case r.lost:
		return Lost
	}
	m.renew(r, now)
	return do(r)
}

func (m *model) prefillDone(key Key, now time.Time) Outcome {
	return m.report(key, now, func(r *modelReservation) Outcome {
		if r.prefilled {
			return Duplicate
		}
		m.prefilled(r, now)
		return Applied
	})
}

func (m *model) progress(key Key, output int, now time.Time) Outcome {
	return m.report(key, now, func(r *modelReservation) Outcome {
		switch {
		case output < r.output:
			return Stale
		case output == r.output:
			return Duplicate
		}
		if !r.prefilled {
			m.prefilled(r, now)
		}
		if blocksOf(r.req, output) > blocksOf(r.req, r.output) && r.req.ExpectedTokens > 0 {
			r.weight = min(1, max(0, 1-float64(output)/float64(r.req.ExpectedTokens)))
		}
		r.output = output
		return Applied
	})
}

func (m *model) release(key Key, now time.Time) Outcome {
	r := m.find(key.ID)
	if r == nil || r.req.Attempt != key.Attempt {
		return m.report(key, now, nil)
	}
	m.end(r, now)
	return Applied
}

func (m *model) end(r *modelReservation, now time.Time) {
	if !r.lost {
		m.leave(r, now)
	}
	m.live = slices.DeleteFunc(m.live, func(o *modelReservation) bool { return o == r })
	m.ended[r.req.ID] = r.req.Attempt
}

func (m *model) expire(now time.Time) {
	for _, r := range slices.Clone(m.live) {
		if !r.deadline.IsZero() && !r.deadline.After(now) {
			m.end(r, now)
		}
	}
}

func (m *model) removeRank(slot replica.Slot) int {
	delete(m.ranks, slot)
	n := 0
	for _, r := range m.live {
		if r.req.Slot == slot && !r.lost {
			r.lost, r.queued = true, false
			n++
		}
	}
	return n
}

func blocksOf(req Request, output int) int {
	return (req.PromptTokens + output + req.BlockSize - 1) / req.BlockSize
}

// view recomputes a rank's load.
func (m *model) view(slot replica.Slot, now time.Time) RankLoad {
	var l RankLoad
	if !m.ranks[slot] {
		return l
	}
	m.settle(slot, now)
	users := map[blockhash.Hash][]*modelReservation{}
	for _, r := range m.live {
		if r.lost || r.req.Slot != slot {
			continue
		}
		l.InFlight++
		if r.assumed {
			l.Assumed++
		}
		l.OutputTokens += r.output
		l.ContextTokens += r.req.PromptTokens + r.output
		l.DecodeBlocks += r.weight * float64(blocksOf(r.req, r.output)-len(r.req.Hashes))
		l.UsedBlocks += int64(blocksOf(r.req, r.output) - len(r.req.Hashes))
		for _, h := range r.req.Hashes {
			users[h] = append(users[h], r)
		}
	}
	l.UsedBlocks += int64(len(users))
	for _, sharers := range users {
		if len(sharers) == 1 {
			l.DecodeBlocks += sharers[0].weight
		} else {
			l.DecodeBlocks++
		}
	}
	for i, r := range m.queue(slot) {
		l.Prefilling++
		left := r.req.PrefillTime
		share := 1.0
		if i == 0 {
			served := now.Sub(m.heads[slot])
			left = max(0, left-served)
			l.Overdue = max(0, served-r.req.PrefillTime)
			if r.req.PrefillTime > 0 {
				share = float64(left) / float64(r.req.PrefillTime)
			}
		}
		l.PrefillTime += left
		l.PrefillTokens += share * float64(r.req.PrefillTokens)
	}
	return l
}

func (l RankLoad) near(o RankLoad) bool {
	close := func(a, b float64) bool { return math.Abs(a-b) <= 1e-2 }
	return l.InFlight == o.InFlight && l.Prefilling == o.Prefilling && l.Assumed == o.Assumed &&
		close(l.PrefillTokens, o.PrefillTokens) && l.PrefillTime == o.PrefillTime && l.Overdue == o.Overdue &&
		close(l.DecodeBlocks, o.DecodeBlocks) && l.UsedBlocks == o.UsedBlocks && l.ContextTokens == o.ContextTokens && l.OutputTokens == o.OutputTokens
}

// randomRequest draws from few ids and prompts that share prefixes.
func randomRequest(dice *rand.Rand, slots int) Request {
	const blockSize = 4
	n := dice.IntN(10)
	hashes := make([]blockhash.Hash, 0, n)
	parent := blockhash.Hash(0)
	for range n {
		parent = blockhash.Next(parent, uint64(1+dice.IntN(2)))
		hashes = append(hashes, parent)
	}
	prompt := blockSize*n + dice.IntN(3*blockSize)
	if len(hashes) == 0 {
		hashes = nil
	}
	req := Request{
		ID: fmt.Sprint("r", dice.IntN(12)), Attempt: uint32(dice.IntN(3)), Slot: replica.Slot(dice.IntN(slots)),
		PromptTokens: prompt, PrefillTokens: dice.IntN(prompt + 1), Hashes: hashes, BlockSize: blockSize,
		PrefillTime: time.Duration(dice.IntN(4)) * time.Second, ExpectedTokens: dice.IntN(30) - 5,
		Unstreamed: dice.IntN(3) == 0,
	}
	if dice.IntN(2) == 0 {
		req.Lease = time.Duration(1+dice.IntN(5)) * time.Second
	}
	return req
}

func TestTheBookEqualsTheModel(t *testing.T) {
	const slots, steps = 3, 400
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 1))
			b := New(DefaultConfig(), Params{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = b.Run(ctx) }() // returns nil by contract; the leak check sees it end
			m := &model{ranks: map[replica.Slot]bool{}, ended: map[string]uint32{}, heads: map[replica.Slot]time.Time{}}
			for slot := range replica.Slot(slots) {
				b.AddRank(slot)
				m.ranks[slot] = true
			}
			time.Sleep(time.Second / 2) // so that no step falls on a sweep
			for step := range steps {
				what := walk(t, dice, b, m, slots)
				for slot := range replica.Slot(slots) {
					got, want := b.View(slot, time.Now()), m.view(slot, time.Now())
					if !got.near(want) {
						t.Fatalf("seed %d, step %d, after %s: rank %d:\n got %+v\nwant %+v", seed, step, what, slot, got, want)
					}
				}
				if b.Live() != len(m.live) {
					t.Fatalf("seed %d, step %d, after %s: %d live, want %d", seed, step, what, b.Live(), len(m.live))
				}
			}
			for _, r := range slices.Clone(m.live) {
				b.Release(Key{"", r.req.ID, r.req.Attempt})
			}
			mustBeEmpty(t, b)
		})
	}
}

// walk makes one random step in both and compares the answers.
func walk(t *testing.T, dice *rand.Rand, b *Book, m *model, slots int) string {
	t.Helper()
	now := time.Now()
	key := Key{"", fmt.Sprint("r", dice.IntN(12)), uint32(dice.IntN(3))}
	if r := m.find(key.ID); r != nil && dice.IntN(3) > 0 {
		key.Attempt = r.req.Attempt
	}
	compare := func(what string, got, want any) string {
		if got != want {
			t.Fatalf("%s: got %v, want %v", what, got, want)
		}
		return what
	}
	for slot := range replica.Slot(slots) { // both look first: a look settles what is due
		b.View(slot, now)
		m.settle(slot, now)
	}
	switch n := dice.IntN(100); {
	case n < 35:
		req := randomRequest(dice, slots)
		_, err := b.Reserve(req)
		return compare(fmt.Sprintf("Reserve(%+v)", req), err, m.reserve(req, now))
	case n < 50:
		return compare(fmt.Sprint("PrefillDone", key), b.PrefillDone(key), m.prefillDone(key, now))
	case n < 75:
		output := dice.IntN(40)
		return compare(fmt.Sprint("Progress", key, output), b.Progress(key, output), m.progress(key, output, now))
	case n < 88:
		return compare(fmt.Sprint("Release", key), b.Release(key), m.release(key, now))
	case n < 97:
		seconds := 1 + dice.IntN(2)
		for range seconds {
			tick := time.Now().Truncate(time.Second).Add(time.Second)
			time.Sleep(time.Second)
			synctest.Wait()
			m.expire(tick)
		}
		return fmt.Sprintf("%d s", seconds)
	case n < 98:
		slot := replica.Slot(dice.IntN(slots))
		return compare(fmt.Sprint("RemoveRank ", slot), b.RemoveRank(slot), m.removeRank(slot))
	default:
		slot := replica.Slot(dice.IntN(slots))
		b.AddRank(slot)
		m.ranks[slot] = true
		return fmt.Sprint("AddRank ", slot)
	}
}

// mustBeEmpty checks that nothing is left behind inside a book whose reservations have all ended.
func mustBeEmpty(t *testing.T, b *Book) {
	t.Helper()
	if n := b.Live(); n != 0 {
		t.Errorf("%d reservations live", n)
	}
	for i := range b.shards {
		if n := len(b.shards[i].live); n != 0 {
			t.Errorf("shard %d holds %d", i, n)
		}
	}
	for _, p := range *b.ranks.Load() {
		if p == nil {
			continue
		}
		rk := p.rank
		if rk.sums != (sums{}) || rk.tree.shared != 0 || len(rk.tree.byFirst) != 0 || rk.tree.root.child != nil ||
			rk.bookings.first != nil || rk.queue.first != nil || rk.pub.output.Load() != 0 {
			t.Errorf("rank %d is not empty: sums %+v, %d shared, %d nodes, %d output", rk.slot, rk.sums, rk.tree.shared, len(rk.tree.byFirst), rk.pub.output.Load())
		}
	}
}
