package chooser_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// root is a call with a prompt of its own, which is answered for two seconds. copier may be nil.
func (f *fork) root(copier chooser.Copier) {
	f.prefix++
	req := f.request(f.prefix, forkPrefix+1)
	req.Copier = copier
	c := f.choose(req)
	time.Sleep(4 * time.Second)
	f.holds(c.Slot, f.prefix, forkPrefix)
	c.FirstToken()
	time.Sleep(2 * time.Second)
	c.Release(done(decision.EndCompleted))
	time.Sleep(100 * time.Millisecond)
}

// Where calls were forked lately, the prompt of the next one is copied while it is answered, once to each rank; where they were not, nothing is.
func TestPromptIsCopiedAheadOfItsFork(t *testing.T) {
	for _, tt := range []struct {
		name           string
		change         func(*chooser.Config, *chooser.Params)
		branches, want int
		fails          bool
	}{
		{"forks", nil, 20, 3, false},
		{"forks, and copies fail", nil, 20, 3, true},
		{"forks, without copies", func(c *chooser.Config, _ *chooser.Params) { c.CopyPrefixes = false }, 20, 0, false},
		{"chats", nil, 1, 0, false},
		{"calls that nothing follows", nil, 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, stop := newFork(t, 4, tt.change)
				defer stop()
				fails := false
				copier := f.noted(func(p *chooser.Prefix) {
					if fails {
						time.Sleep(20 * time.Millisecond)
						p.Ended(chooser.TargetFailed)
						return
					}
					f.works(p)
				})
				f.prefix = 50
				for range 6 {
					f.root(copier)
					f.start(tt.branches, copier)
					time.Sleep(time.Minute)
				}
				f.copies, f.waited, fails = nil, nil, tt.fails
				f.root(copier)
				to := map[replica.Slot]int{}
				for _, p := range f.copies {
					if to[p.To.Slot]++; p.Tokens != forkPrefix || p.Moved != forkPrefix {
						t.Errorf("the copy %+v", p)
					}
				}
				if len(f.copies) != tt.want || len(to) != tt.want {
					t.Errorf("%d copies to %d ranks before the fork, want %d", len(f.copies), len(to), tt.want)
				}
				f.start(tt.branches, copier)
				if tt.want > 0 && !fails && len(f.copies) != tt.want {
					t.Errorf("the fork had %d more copies made", len(f.copies)-tt.want)
				}
				f.eventuallyEmpty()
			})
		})
	}
}

// The copies under way ahead of forks leave alone a call that ends: nothing of it stays.
func TestNothingIsCopiedAheadAfterTheEndOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFork(t, 4, nil)
		defer stop()
		copier := f.noted(f.works)
		f.prefix = 50
		for range 6 {
			f.root(copier)
			f.start(20, copier)
			time.Sleep(time.Minute)
		}
		f.copies = nil
		f.prefix++
		req := f.request(f.prefix, forkPrefix+1)
		req.Copier = copier
		c := f.choose(req)
		f.holds(c.Slot, f.prefix, forkPrefix)
		c.FirstToken()
		c.Release(done(decision.EndCompleted))
		time.Sleep(time.Minute)
		if n := len(f.copies); n == 0 || n > 2 {
			t.Errorf("%d copies of the prompt of a call that ended at once", n)
		}
		f.eventuallyEmpty()
	})
}
