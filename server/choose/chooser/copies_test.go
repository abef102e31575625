package chooser_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// fork is a burst of requests that begin with the same prompt, before engines that compute one request after the other.
type fork struct {
	*fleet
	prefix int // its number
	mu     sync.Mutex
	copies []*chooser.Prefix // begun; guarded by mu
	served map[replica.ID]int
	waited []time.Duration
	first  []*decision.Decision
	all    sync.WaitGroup
}

const (
	forkPrefix = 32_000
	forkOwn    = 800
)

// newFork starts n replicas with NIXL, of which the first holds the prefix, and the chooser's clock.
func newFork(t *testing.T, n int, change func(*chooser.Config, *chooser.Params)) (f *fork, stop func()) {
	f = &fork{fleet: newFleet(t, n, change), prefix: 1, served: map[replica.ID]int{}}
	f.know()
	roles := make([]string, n)
	for i := range roles {
		roles[i] = "both"
	}
	f.withRoles(roles...)
	f.holds(0, 1, forkPrefix)
	return f, f.running(t.Context())
}

// branch is a request with the prefix and a part of its own.
func (f *fork) branch(i int, copier chooser.Copier) *chooser.Request {
	req := f.request(100+i, forkPrefix+forkOwn)
	ids := append(tokens(f.prefix, forkPrefix), tokens(100*f.prefix+i, forkOwn)...)
	hashes := blockhash.Chain(nil, ids, block, blockhash.Namespace{})
	req.Hashes = func(int) []blockhash.Hash { return hashes }
	req.Copier = copier
	return req
}

// start sends n branches. An engine has a branch's first token 0.17 s after the one before it, or 7 s where it lacks the prefix.
func (f *fork) start(n int, copier chooser.Copier) {
	engines := make([]chan struct{}, len(f.replicas))
	for i := range engines {
		engines[i] = make(chan struct{}, 1)
	}
	for i := range n {
		f.all.Go(func() {
			began := time.Now()
			c := f.choose(f.branch(i, copier))
			took := 170 * time.Millisecond
			if c.Decision.Pick().GPU < forkPrefix {
				took = 7 * time.Second
			}
			engines[c.Slot] <- struct{}{}
			time.Sleep(took)
			<-engines[c.Slot]
			c.FirstToken()
			f.mu.Lock()
			f.served[c.Replica.ID]++
			f.waited = append(f.waited, time.Since(began))
			f.first = append(f.first, c.Decision)
			f.mu.Unlock()
			time.Sleep(3 * time.Second)
			c.Release(done(decision.EndCompleted))
		})
		time.Sleep(2 * time.Millisecond)
	}
	f.all.Wait()
}

// noted keeps the copies that begin, and has then do the rest.
func (f *fork) noted(then func(*chooser.Prefix)) chooser.Copier { return copierFunc{f, then} }

type copierFunc struct {
	*fork
	then func(*chooser.Prefix)
}

// Copy implements chooser.Copier.
func (c copierFunc) Copy(p *chooser.Prefix) {
	c.mu.Lock()
	c.copies = append(c.copies, p)
	c.mu.Unlock()
	go c.then(p)
}

// works is a copy that takes 0.2 s.
func (f *fork) works(p *chooser.Prefix) {
	time.Sleep(20 * time.Millisecond)
	p.Sent()
	time.Sleep(180 * time.Millisecond)
	f.holds(p.To.Slot, f.prefix, p.Tokens)
	p.Ended(chooser.Copied)
	p.Ended(chooser.SourceFailed) // a second end does nothing
}

func (f *fork) slowest() time.Duration {
	var most time.Duration
	for _, w := range f.waited {
		most = max(most, w)
	}
	return most
}

func TestPrefixOfABurstIsCopiedOnceToEachRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFork(t, 4, nil)
		defer stop()
		f.start(40, f.noted(f.works))
		to := map[replica.Slot]int{}
		for _, p := range f.copies {
			to[p.To.Slot]++
			if p.Tokens != forkPrefix || p.Moved != forkPrefix || p.From.Replica == nil || p.From.Slot == p.To.Slot || p.Predicted <= 0 || p.Predicted > time.Second {
				t.Errorf("the copy %+v", p)
			}
		}
		if len(f.copies) != 3 || to[1] != 1 || to[2] != 1 || to[3] != 1 {
			t.Errorf("%d copies to three ranks: %v", len(f.copies), to)
		}
		if most := f.slowest(); most > 3*time.Second {
			t.Errorf("the slowest first token came after %v; one rank alone takes 6.8 s", most)
		}
		for id, n := range f.served {
			if n < 5 {
				t.Errorf("%s served %d of 40", id, n)
			}
		}
		waited := 0
		for _, d := range f.first {
			w := d.Copied()
			if w == nil {
				continue
			}
			waited++
			if w.Kind() != "copy" || w.Prefill.Replica == "" || w.Decode.Replica == "" || w.Moved == 0 && w.Held != forkPrefix || w.Began.IsZero() || d.Split() != nil {
				t.Errorf("the record has %+v", *w)
			}
		}
		if waited < 10 {
			t.Errorf("%d decisions name the copy that they waited for", waited)
		}
		f.eventuallyEmpty()
	})
}

// The events of a rank that has got a prefix may come after the answer; until then it counts as holding it.
func TestPrefixIsNotCopiedAgainWhileItsEventsAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFork(t, 4, nil)
		defer stop()
		f.start(40, f.noted(func(p *chooser.Prefix) {
			time.Sleep(20 * time.Millisecond)
			p.Sent()
			time.Sleep(180 * time.Millisecond)
			p.Ended(chooser.Copied)
			time.Sleep(500 * time.Millisecond)
			f.holds(p.To.Slot, f.prefix, p.Tokens)
		}))
		if len(f.copies) != 3 {
			t.Errorf("%d copies to three ranks", len(f.copies))
		}
		f.eventuallyEmpty()
	})
}

// interrupting has the chooser's read of the engines' reports, in the middle of an evaluation, do something once, after some reads.
type interrupting struct {
	once  atomic.Pointer[func()]
	after atomic.Int64
}

func (r *interrupting) Report(replica.Slot, time.Time, int, *chooser.Report) bool {
	if r.once.Load() == nil || r.after.Add(-1) >= 0 {
		return false
	}
	if do := r.once.Swap(nil); do != nil {
		(*do)()
	}
	return false
}

// A copy that ends between the moment at which a request's blocks are looked up and the moment at which the copies are is neither under way nor there.
func TestPrefixIsNotCopiedAgainWhenItsCopyEndsDuringAVisit(t *testing.T) {
	for visited := range 12 {
		synctest.Test(t, func(t *testing.T) {
			read := &interrupting{}
			f, stop := newFork(t, 4, func(_ *chooser.Config, p *chooser.Params) { p.Reports = read })
			defer stop()
			f.start(40, f.noted(func(p *chooser.Prefix) {
				time.Sleep(20 * time.Millisecond)
				p.Sent()
				time.Sleep(180 * time.Millisecond)
				end := func() { p.Ended(chooser.Copied) }
				read.after.Store(int64(4 * visited))
				for !read.once.CompareAndSwap(nil, &end) {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(500 * time.Millisecond)
				f.holds(p.To.Slot, f.prefix, p.Tokens)
			}))
			if len(f.copies) != 3 {
				t.Errorf("%d copies to three ranks", len(f.copies))
			}
			f.eventuallyEmpty()
		})
	}
}

// Where the latest prefixes were forked, the copies of the next one begin with its first branch, before the holder computes anything of that; otherwise
// no request waits for others that may come.
func TestCopyBeginsWithTheFirstBranchWhereForksAreUsual(t *testing.T) {
	for _, usual := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, stop := newFork(t, 4, nil)
			defer stop()
			branches := 1
			if usual {
				branches = 20
			}
			for n := range 5 {
				f.prefix = 2 + n
				f.holds(0, f.prefix, forkPrefix)
				f.start(branches, f.noted(f.works))
				time.Sleep(time.Minute)
			}
			f.copies, f.prefix = nil, 20
			f.holds(0, f.prefix, forkPrefix)
			began := time.Now()
			c := f.choose(f.branch(1, f.noted(f.works)))
			if len(f.copies) > 0 != usual {
				t.Errorf("usual %v: %d copies", usual, len(f.copies))
			}
			if waited := time.Since(began); c.Replica.ID != "r0" || waited > 50*time.Millisecond || (waited > 0) != usual {
				t.Errorf("usual %v: the branch waits %v for %s", usual, waited, c.Replica.ID)
			}
			c.FirstToken()
			c.Release(done(decision.EndCompleted))
			f.eventuallyEmpty()
		})
	}
}

// eventuallyEmpty fails when anything stays booked.
func (f *fork) eventuallyEmpty() {
	f.t.Helper()
	time.Sleep(time.Minute)
	f.empty()
}

// However a copy ends, or if it never does, no request waits much longer than without copies.
func TestCopyThatFailsDelaysNoRequest(t *testing.T) {
	for _, tt := range []struct {
		name string
		copy func(*fork, *chooser.Prefix)
		most int // copies that begin
	}{
		{"the source fails", func(_ *fork, p *chooser.Prefix) { time.Sleep(50 * time.Millisecond); p.Ended(chooser.SourceFailed) }, 3},
		{"the target fails", func(_ *fork, p *chooser.Prefix) {
			p.Sent()
			time.Sleep(50 * time.Millisecond)
			p.Ended(chooser.TargetFailed)
		}, 3},
		{"it is given up at once", func(_ *fork, p *chooser.Prefix) { p.Ended(chooser.CopyGivenUp) }, 3},
		{"it hangs", func(_ *fork, p *chooser.Prefix) { time.Sleep(time.Minute); p.Ended(chooser.TargetFailed) }, 3},
		{"it ends and nothing is there", func(_ *fork, p *chooser.Prefix) {
			p.Sent()
			time.Sleep(200 * time.Millisecond)
			p.Ended(chooser.Copied)
		}, 60},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var without time.Duration
			synctest.Test(t, func(t *testing.T) {
				f, stop := newFork(t, 4, nil)
				defer stop()
				f.start(20, nil)
				without = f.slowest()
				f.eventuallyEmpty()
			})
			synctest.Test(t, func(t *testing.T) {
				f, stop := newFork(t, 4, nil)
				defer stop()
				f.start(20, f.noted(func(p *chooser.Prefix) { tt.copy(f, p) }))
				if got := f.slowest(); got > without+without/4+500*time.Millisecond {
					t.Errorf("the slowest first token came after %v, %v without copies", got, without)
				}
				if n := len(f.copies); n == 0 || n > tt.most {
					t.Errorf("%d copies began", n)
				}
				f.eventuallyEmpty()
			})
		})
	}
}

func TestNothingIsCopied(t *testing.T) {
	for _, tt := range []struct {
		name   string
		n      int
		change func(*chooser.Config, *chooser.Params)
		spoil  func(*fork)
	}{
		{"for few requests", 3, nil, nil},
		{"without the setting", 20, func(c *chooser.Config, _ *chooser.Params) { c.CopyPrefixes = false }, nil},
		{"without the hold queue", 20, func(c *chooser.Config, _ *chooser.Params) { c.HoldAbove = 0 }, nil},
		{"without connectors", 20, nil, func(f *fork) { f.withRoles("", "", "", "") }},
		{"between groups", 20, nil, func(f *fork) {
			for i, r := range f.replicas {
				r.Labels[replica.LabelGroup] = fmt.Sprint(i)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, stop := newFork(t, 4, tt.change)
				defer stop()
				if tt.spoil != nil {
					for _, r := range f.replicas {
						r.Labels = map[string]string{replica.LabelConnector: "nixl"}
					}
					if tt.name == "without connectors" {
						for _, r := range f.replicas {
							r.Labels = nil
						}
					} else {
						tt.spoil(f)
					}
				}
				f.start(tt.n, f.noted(f.works))
				if len(f.copies) != 0 {
					t.Errorf("%d copies began", len(f.copies))
				}
				f.eventuallyEmpty()
			})
		})
	}
}

// A program that leaves a rank without memory for it is worth a copy of its context for its one call; where the copy fails the call is served all the same.
func TestProgramThatMovesIsCopied(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails %t", fails), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fork{fleet: newFleet(t, 2, nil)}
				f.small()
				f.know()
				f.withRoles("both", "both")
				defer f.running(t.Context())()
				f.teachPrograms()
				first := f.choose(f.session("moves", 1, 8000))
				f.holds(first.Slot, 1, 8000)
				f.serve(first)
				f.holds(first.Slot, 2, 2000)
				f.serve(f.choose(f.session("large", 2, 16_000)))
				f.holds(first.Slot, 2, 16_000)
				large := f.choose(f.session("large", 2, 24_000))
				large.FirstToken()
				if large.Slot != first.Slot {
					t.Fatalf("the programs are on the ranks %d and %d, want one", first.Slot, large.Slot)
				}
				time.Sleep(time.Second)
				next := f.session("moves", 1, 9000)
				next.Copier = f.noted(func(p *chooser.Prefix) {
					time.Sleep(20 * time.Millisecond)
					if fails {
						p.Ended(chooser.SourceFailed)
						return
					}
					p.Sent()
					time.Sleep(80 * time.Millisecond)
					f.holds(p.To.Slot, 1, p.Tokens)
					p.Ended(chooser.Copied)
				})
				began := time.Now()
				c := f.choose(next)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the call waited %s for the copy", took)
				}
				if c.Slot == first.Slot {
					t.Error("the program stays on a full rank next to an empty one")
				}
				if len(f.copies) != 1 || f.copies[0].From.Slot != first.Slot || f.copies[0].To.Slot != c.Slot || f.copies[0].Tokens != 8000 {
					t.Errorf("the copies are %+v, want one of 8,000 tokens from rank %d", f.copies, first.Slot)
				}
				if held := c.Decision.Pick().GPU; !fails && held != 8000 {
					t.Errorf("the call finds %d tokens, want the 8,000 of the copy", held)
				}
				f.serve(c)
				f.serve(large)
				f.eventuallyEmpty()
			})
		})
	}
}
