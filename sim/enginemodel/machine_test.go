package enginemodel

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// Blocks are conserved, announced as they are held, and no token is lost, whatever is submitted and aborted.
func TestRandomSchedulesKeepEveryBlockAndToken(t *testing.T) {
	preempted, twins := 0, 0
	for seed := range uint64(60) {
		play(t, seed, &preempted, &twins)
	}
	if preempted < 30 || twins < 100 {
		t.Errorf("%d preemptions and %d duplicate blocks: the schedules test too little", preempted, twins)
	}
}

func FuzzSchedules(f *testing.F) {
	for seed := range uint64(5) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		var preempted, twins int
		play(t, seed, &preempted, &twins)
	})
}

func play(t *testing.T, seed uint64, preempted, twins *int) {
	dice := rand.New(rand.NewPCG(seed, 1))
	s := randomSchedule(dice, true)
	limit := 1 + 50*int(seed%2)
	out, m, b := s.drive(t, limit, func(m *Machine, b *book) {
		if err := conserved(m, b); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, n := range b.held {
			if n > 1 {
				*twins++
			}
		}
	})
	for i, o := range out {
		if a := s.arrivals[i]; !o.aborted && (o.made != a.most || o.done == 0 || o.first > o.done || o.first <= a.at) {
			t.Fatalf("seed %d: request %d of %d + %d tokens ended as %+v", seed, i, a.prompt, a.most, o)
		}
	}
	if len(m.running)+len(m.waiting) > 0 || m.pool.free != m.pool.Size() {
		t.Fatalf("seed %d: %d run, %d wait, %d of %d blocks are free", seed, len(m.running), len(m.waiting), m.pool.free, m.pool.Size())
	}
	if !m.Reset() {
		t.Fatalf("seed %d: an idle cache is not emptied", seed)
	}
	for k := range b.held {
		if m.pool.Match([]blockhash.Hash{k}) > 0 {
			t.Fatalf("seed %d: block %d is found after the reset", seed, k)
		}
	}
	*preempted += int(m.Counts().Preemptions)
}

// Runs of decode steps end in the same state, at the same times, as single steps.
func TestRunsEqualSingleSteps(t *testing.T) {
	skipped := 0
	for seed := range uint64(60) {
		s := randomSchedule(rand.New(rand.NewPCG(seed, 2)), true)
		none := func(*Machine, *book) {}
		single, m1, b1 := s.drive(t, 1, none)
		run, m2, b2 := s.drive(t, 1000, func(m *Machine, _ *book) { skipped = max(skipped, m.step.Steps) })
		for i := range single {
			a, b := single[i], run[i]
			if math.Abs(a.first-b.first) > 1e-9 || math.Abs(a.done-b.done) > 1e-9 || a.made != b.made || a.cached != b.cached || a.aborted != b.aborted {
				t.Fatalf("seed %d, request %d: single steps %+v, runs %+v", seed, i, a, b)
			}
		}
		if m1.Counts() != m2.Counts() || !reflect.DeepEqual(b1.held, b2.held) {
			t.Fatalf("seed %d: single steps %+v and %d blocks, runs %+v and %d", seed, m1.Counts(), len(b1.held), m2.Counts(), len(b2.held))
		}
	}
	if skipped < 50 {
		t.Errorf("the longest run has %d steps: the schedules test too little", skipped)
	}
}

// Sequences are admitted in the order in which they came.
func TestAdmissionIsFirstComeFirstServed(t *testing.T) {
	for seed := range uint64(50) {
		s := randomSchedule(rand.New(rand.NewPCG(seed, 3)), false)
		next := 0
		s.cfg.Adapters = Adapters{}
		s.drive(t, 1, func(m *Machine, _ *book) {
			for _, list := range [][]*Sequence{m.running, m.waiting} {
				for _, q := range list {
					n := q.Owner.(int)
					if q.admitted && n >= next {
						if n > next {
							for _, w := range m.waiting {
								if w.Owner.(int) < n && !w.admitted {
									t.Fatalf("seed %d: request %d runs before %d", seed, n, w.Owner)
								}
							}
						}
						next = n + 1
					}
				}
			}
		})
	}
}

func tiny() Config {
	return Config{
		BlockSize: 4, Blocks: 16, MaxBatchedTokens: 100, MaxSeqs: 4,
		Timing: Timing{PrefillRate: 1000, HalfContext: 1e12, Base: 10 * time.Millisecond, PerSequence: time.Millisecond, PerContextToken: time.Microsecond, Speed: 2},
	}
}

func TestAStepTakesWhatTheModelSays(t *testing.T) {
	m := New(tiny(), nil, &book{held: map[blockhash.Hash]int{}})
	m.Submit(&Sequence{Prompt: 20, Most: 30})
	if s := m.Plan(1000); s.Steps != 1 || s.PromptTokens != 20 || math.Abs(s.Seconds(1)-0.015) > 1e-12 {
		t.Errorf("prefill: %+v", s)
	}
	m.Complete(1)
	s := m.Plan(1000)
	// The n-th of the 29 decode steps reads 19 + n tokens.
	want := 0.0
	for n := range 29 {
		want += (0.010 + 0.001 + 1e-6*float64(20+n)) / 2
	}
	if s.Steps != 29 || s.PromptTokens != 0 || math.Abs(s.Seconds(29)-want) > 1e-12 {
		t.Errorf("decode: %+v takes %v s, want %v", s, s.Seconds(29), want)
	}
	if n := s.Ended(s.Seconds(7) + 1e-9); n != 7 {
		t.Errorf("%d steps have ended after the seventh", n)
	}
	if out := m.Complete(29); len(out) != 1 || out[0].Live() || out[0].Made() != 30 {
		t.Errorf("at the end: %+v", out)
	}
	if s := m.Plan(1000); s.Steps != 0 {
		t.Errorf("an idle machine plans %+v", s)
	}
}

// Two sequences that compute the same block hold it twice; it is lost with the second one only.
func TestDuplicatesAreEvictedOneByOne(t *testing.T) {
	b := &book{held: map[blockhash.Hash]int{}}
	cfg := tiny()
	cfg.Blocks = 4
	m := New(cfg, nil, b)
	keys := []blockhash.Hash{1, 2}
	for range 2 {
		m.Submit(&Sequence{Keys: keys, Prompt: 8})
		m.Plan(1)
		m.Complete(1)
	}
	// The second one found block 1 and computed block 2 again, since a hit covers all but one token at most.
	if b.held[1] != 1 || b.held[2] != 2 {
		t.Fatalf("announced: %v", b.held)
	}
	evict := func(n int) {
		m.Submit(&Sequence{Prompt: 4 * n})
		m.Plan(1)
		m.Complete(1)
	}
	evict(2) // the block that was never used, and the first copy
	if b.held[1] != 1 || b.held[2] != 1 || m.pool.Match(keys) != 2 {
		t.Errorf("after the first copy: %v, %d found", b.held, m.pool.Match(keys))
	}
	evict(3)
	if b.held[2] != 0 || m.pool.Match(keys) > 1 {
		t.Errorf("after the second copy: %v, %d found", b.held, m.pool.Match(keys))
	}
}

// A preempted sequence finds its blocks in the cache and writes its answer to the end.
func TestAPreemptedSequenceResumesFromTheCache(t *testing.T) {
	b := &book{held: map[blockhash.Hash]int{}}
	m := New(tiny(), nil, b)
	var list []*Sequence
	for i := range 2 { // 16 blocks of 4: both fit at first, not at their full length
		s := &Sequence{Owner: i, Prompt: 24, Most: 30}
		for k := range 13 {
			s.Keys = append(s.Keys, blockhash.Hash(100*i+k+1))
		}
		list = append(list, s)
		m.Submit(s)
	}
	least := 1 << 30 // prompt tokens of the second one's later prefill steps
	for step := m.Plan(1); step.Steps > 0; step = m.Plan(1) {
		if step.PromptTokens > 0 && m.Counts().Preemptions > 0 {
			least = min(least, step.PromptTokens)
		}
		m.Complete(1)
	}
	if m.Counts().Preemptions == 0 {
		t.Fatal("nobody was preempted")
	}
	if list[0].Made() != 30 || list[1].Made() != 30 {
		t.Errorf("%d and %d tokens, want 30", list[0].Made(), list[1].Made())
	}
	if list[1].Cached() != 0 {
		t.Errorf("what a preempted sequence finds of itself counts as a hit of %d tokens", list[1].Cached())
	}
	// It had 33 tokens when the other took its ninth block. That one left two of its eight in the end.
	if least != 33-8 {
		t.Errorf("a resumed sequence computed at least %d tokens, want 25", least)
	}
}

// With WholePrompts a long prompt waits until all of it fits.
func TestWholePromptsWaitUntilTheyFit(t *testing.T) {
	for _, whole := range []bool{false, true} {
		cfg := tiny()
		cfg.WholePrompts, cfg.MaxBatchedTokens = whole, 8
		m := New(cfg, nil, &book{held: map[blockhash.Hash]int{}})
		m.Submit(&Sequence{Prompt: 40, Most: 2})
		for range 5 {
			m.Plan(1)
			m.Complete(1)
		}
		m.Submit(&Sequence{Prompt: 40, Most: 1})
		m.Plan(1)
		if got := len(m.Running()); (got == 1) != whole {
			t.Errorf("whole prompts %v: %d sequences run", whole, got)
		}
	}
}

func TestBadConfigurationsAreNamed(t *testing.T) {
	if err := tiny().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"block size": func(c *Config) { c.BlockSize = 0 }, "blocks": func(c *Config) { c.Blocks = 0 }, "budget": func(c *Config) { c.MaxBatchedTokens = 0 },
		"sequences": func(c *Config) { c.MaxSeqs = 0 }, "rate": func(c *Config) { c.Timing.PrefillRate = 0 },
		"half context": func(c *Config) { c.Timing.HalfContext = 0 }, "speed": func(c *Config) { c.Timing.Speed = 0 },
	} {
		c := tiny()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
