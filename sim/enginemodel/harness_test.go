package enginemodel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// arrival is a request of a random schedule.
type arrival struct {
	at           float64
	keys         []blockhash.Hash
	prompt, most int
	noHits       bool
	abortAfter   float64 // 0: never
	adapter      string
}

// schedule is a random engine with random work.
type schedule struct {
	cfg      Config
	arrivals []arrival
}

// randomSchedule makes an engine that is small enough to run out of blocks, with prompts that share
// beginnings and answers that later prompts continue.
func randomSchedule(dice *rand.Rand, aborts bool) schedule {
	block := []int{1, 4, 16}[dice.IntN(3)]
	s := schedule{cfg: Config{
		BlockSize: block, Blocks: 20 + dice.IntN(60), MaxBatchedTokens: 8 + dice.IntN(200), MaxSeqs: 2 + dice.IntN(12),
		WholePrompts: dice.IntN(2) == 0, NoCaching: dice.IntN(10) == 0,
		Timing: Timing{
			PrefillRate: 1000, HalfContext: 500, Base: 10 * time.Millisecond, PerSequence: time.Millisecond,
			PerContextToken: 10 * time.Microsecond, Speed: 0.5 + dice.Float64(),
		},
	}}
	room := s.cfg.Blocks * block
	at := 0.0
	for i := range 10 + dice.IntN(60) {
		at += dice.ExpFloat64() * 0.08
		total := 2 + dice.IntN(room-2)
		if dice.IntN(3) > 0 {
			total = 2 + dice.IntN(max(1, room/6))
		}
		a := arrival{at: at, prompt: 1 + dice.IntN(total-1), noHits: dice.IntN(20) == 0}
		a.most = total - a.prompt
		if dice.IntN(15) == 0 {
			a.most = 0
		}
		// Keys up to a random block of an earlier request, then keys of its own, and perhaps none for the end.
		full := total / block
		if i > 0 && dice.IntN(3) > 0 {
			old := s.arrivals[dice.IntN(i)].keys
			a.keys = append(a.keys, old[:dice.IntN(len(old)+1)]...)
		}
		a.keys = a.keys[:min(len(a.keys), full)]
		for len(a.keys) < full {
			a.keys = append(a.keys, blockhash.Hash(1+i<<20+len(a.keys)))
		}
		if dice.IntN(3) == 0 {
			a.keys = a.keys[:dice.IntN(len(a.keys)+1)]
		}
		if aborts && dice.IntN(6) == 0 {
			a.abortAfter = dice.ExpFloat64() * 0.3
		}
		s.arrivals = append(s.arrivals, a)
	}
	if dice.IntN(2) == 0 {
		s.cfg.Adapters = Adapters{Slots: 1 + dice.IntN(3), Host: dice.IntN(6), Load: 30 * time.Millisecond, Activate: 3 * time.Millisecond}
		for i := range s.arrivals {
			s.arrivals[i].adapter = []string{"", "a", "b", "c", "d", "e"}[dice.IntN(6)]
		}
	}
	return s
}

// outcome is what became of a request.
type outcome struct {
	first, done float64
	made        int
	cached      int
	aborted     bool
}

// book is a sink that counts the announced blocks.
type book struct {
	held map[blockhash.Hash]int
}

func (b *book) Stored(s *Sequence, from, to int) {
	for _, k := range s.Keys[from:to] {
		b.held[k]++
	}
}

func (b *book) Removed(key blockhash.Hash) {
	if b.held[key]--; b.held[key] == 0 {
		delete(b.held, key)
	}
}

// drive plays a schedule in virtual time with at most limit steps planned at once. check runs after
// every call.
func (s *schedule) drive(t testing.TB, limit int, check func(*Machine, *book)) ([]outcome, *Machine, *book) {
	t.Helper()
	b := &book{held: map[blockhash.Hash]int{}}
	m := New(s.cfg, nil, b)
	seqs := make([]*Sequence, len(s.arrivals))
	out := make([]outcome, len(s.arrivals))
	type moment struct {
		at    float64
		n     int
		abort bool
	}
	var due []moment
	for i, a := range s.arrivals {
		due = append(due, moment{at: a.at, n: i})
		if a.abortAfter > 0 {
			due = append(due, moment{at: a.at + a.abortAfter, n: i, abort: true})
		}
		seqs[i] = &Sequence{Owner: i, Keys: a.keys, Prompt: a.prompt, Most: a.most, NoHits: a.noHits, Adapter: a.adapter}
	}
	slices.SortStableFunc(due, func(a, b moment) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	now := 0.0
	step, left := m.Plan(limit), 0
	note := func(list []*Sequence, at float64) {
		for _, q := range list {
			o := &out[q.Owner.(int)]
			if o.first == 0 {
				o.first = at
			}
			o.made = q.Made()
			if !q.Live() {
				o.done = at
			}
		}
		check(m, b)
	}
	for len(due) > 0 || left > 0 {
		end := math.Inf(1)
		if left > 0 {
			end = now + step.Seconds(left)
		}
		if len(due) == 0 || end <= due[0].at {
			note(m.Complete(left), end)
			now = end
			step = m.Plan(limit)
			left = step.Steps
			check(m, b)
			continue
		}
		ev := due[0]
		due = due[1:]
		// Complete the steps of the run that have ended; the running one ends it.
		if left > 1 {
			if n := min(step.Ended(ev.at-now), left-1); n > 0 {
				began := now + step.Seconds(n)
				note(m.Complete(n), began)
				now, step = began, m.Plan(limit)
			}
			left = 1
		}
		if ev.abort {
			if m.Abort(seqs[ev.n]) {
				out[ev.n].aborted = true
			}
		} else {
			m.Submit(seqs[ev.n])
		}
		check(m, b)
		if left == 0 {
			now, step = ev.at, m.Plan(limit)
			left = step.Steps
			check(m, b)
		}
	}
	for i, q := range seqs {
		out[i].cached = q.Cached()
	}
	return out, m, b
}

// conserved checks that no block is lost, used twice or freed too early, and that what was announced is
// what the pool has.
func conserved(m *Machine, b *book) error {
	p := m.pool
	refs := make([]int32, len(p.blocks))
	for _, s := range m.running {
		for _, i := range s.blocks {
			refs[i]++
		}
	}
	used := 0
	named := map[blockhash.Hash]int{}
	for i, blk := range p.blocks {
		if blk.refs != refs[i] {
			return fmt.Errorf("block %d has %d references, %d sequences hold it", i, blk.refs, refs[i])
		}
		if refs[i] > 0 {
			used++
		}
		if blk.key != 0 {
			named[blk.key]++
		}
	}
	listed := 0
	for i := p.head; i != none; i = p.blocks[i].next {
		if p.blocks[i].refs != 0 {
			return fmt.Errorf("block %d is in use and free", i)
		}
		if listed++; listed > len(p.blocks) {
			return fmt.Errorf("the free list does not end")
		}
	}
	if listed != p.free || used+listed != len(p.blocks) {
		return fmt.Errorf("%d blocks in use, %d listed as free, %d counted, of %d", used, listed, p.free, len(p.blocks))
	}
	if m.reserved != p.reserved || p.reserved < 0 || p.reserved > p.free {
		return fmt.Errorf("%d blocks reserved by the pool, %d by the machine, %d free", p.reserved, m.reserved, p.free)
	}
	for k, n := range named {
		if b.held[k] != n {
			return fmt.Errorf("block %d is in the pool %d times, announced %d times", k, n, b.held[k])
		}
		if got := ring(p, k); got != n {
			return fmt.Errorf("block %d is found %d times, want %d", k, got, n)
		}
	}
	if len(named) != len(b.held) || len(named) != len(p.cached) {
		return fmt.Errorf("%d blocks named, %d announced, %d found", len(named), len(b.held), len(p.cached))
	}
	for _, s := range m.running {
		if have, need := len(s.blocks), m.cfg.blocksFor(s.computed+s.planned); have < need {
			return fmt.Errorf("a sequence of %d tokens holds %d blocks", s.computed+s.planned, have)
		}
	}
	return nil
}

// ring counts the blocks with a key by following their neighbours.
func ring(p *Pool, key blockhash.Hash) int {
	first, ok := p.cached[key]
	if !ok {
		return 0
	}
	n := 1
	for i := p.blocks[first].newerTwin; i != first && n <= len(p.blocks); i = p.blocks[i].newerTwin {
		n++
	}
	return n
}
