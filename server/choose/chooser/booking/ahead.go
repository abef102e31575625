package booking

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// mostSpread bounds the calls whose prompts are copied ahead of their forks at the same time.
const mostSpread = 64

// followed is a call among the calls that are forked. It is an Observer.
type followed struct {
	ask.EndOnly
	call   *transfer.Call
	booker *Booker
	spread *spread // nil: no fork is expected
}

// follow has the call of a request that was booked followed, where its prompt may be copied; nil otherwise.
func (b *Booker) follow(s *evaluate.Evaluation, req *ask.Request, of *evaluate.Model, now time.Time) *followed {
	a, ok := s.Follows(req)
	if !ok || req.Attempt > 0 {
		return nil
	}
	a.At = b.Clock.Since(now.Add(-s.Decision.Held))
	f := &followed{call: of.Forks.Follow(&a, b.Clock.Since(now)), booker: b}
	switch {
	case f.call == nil:
		return nil
	case f.call.Expected.Likely() && len(req.Options.Allowed)+len(req.Options.Denied) == 0:
		f.spread = newSpread(b, req, of, &a, selector.Fork(f.call.Expected))
	}
	return f
}

// FirstToken implements Observer: the rank has the prompt to pass on.
func (f *followed) FirstToken(now time.Time, _ int) {
	f.call.Begun(f.booker.Clock.Since(now))
	if f.spread != nil && f.booker.ahead.add(f.spread) {
		f.spread.look()
	}
}

// Ended implements Observer. Copies for calls that come now wait for these.
func (f *followed) Ended(end *ask.End) {
	f.call.Ended(f.booker.Clock.Since(end.At))
	if f.spread != nil {
		f.booker.ahead.remove(f.spread)
	}
}

// spread has the prompt of a call copied to other ranks while the call is answered, because a fork is expected to follow.
type spread struct {
	booker *Booker
	of     *evaluate.Model
	fork   selector.Fork
	// req is a request with the call's prompt, which outlives the call's own.
	req ask.Request

	again   atomic.Bool
	looking sync.Mutex     // held during a look
	tried   []replica.Slot // targets so far; guarded by looking
}

// newSpread keeps the parts of a request that its prompt's copies need.
func newSpread(b *Booker, req *ask.Request, of *evaluate.Model, a *transfer.Arrival, fork selector.Fork) *spread {
	keys, size := slices.Clone(a.Keys), a.BlockSize
	p := &spread{booker: b, of: of, fork: fork}
	p.req = ask.Request{
		Request: req.Request, Pool: req.Pool, Settings: req.Settings, Terms: ask.Terms{Copier: req.Copier},
		Prompt: ask.Prompt{PromptTokens: req.PromptTokens, Hashes: func(blockSize int) []blockhash.Hash {
			if blockSize != size {
				return nil
			}
			return keys
		}},
	}
	return p
}

// look begins the copies that are worth it now. Each rank gets one at most.
func (p *spread) look() {
	p.again.Store(true)
	for p.again.Load() && p.looking.TryLock() {
		p.again.Store(false)
		p.copy()
		p.looking.Unlock()
	}
}

// copy begins copies until none is worth it; looking is held.
func (p *spread) copy() {
	b := p.booker
	now := b.Clock.Now()
	s := b.Borrow(time.Time{})
	defer b.GiveBack(s)
	for {
		if err := b.Evaluate(s, &p.req, p.of, now, nil); err != nil {
			return
		}
		s.Choose()
		if !s.PullFor(p.fork, p.tried) {
			return
		}
		to := s.Decision.Candidates[s.Pull.To].Slot
		if one, _ := b.StartCopy(s, &p.req, now); one == nil {
			return // a copy has ended, or one to that rank has begun: its end is another look
		}
		p.tried = append(p.tried, to)
		b.Metrics.Ahead.Add(1)
	}
}

// spreads are the calls whose prompts are being copied ahead. The zero value is ready; it is safe for concurrent use.
type spreads struct {
	list atomic.Pointer[[]*spread] // nil: none; the slice is never changed
	mu   sync.Mutex                // serialises changes
}

// add adds one; false when there are too many.
func (l *spreads) add(one *spread) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.all()
	if len(list) >= mostSpread {
		return false
	}
	list = append(slices.Clip(list), one)
	l.list.Store(&list)
	return true
}

func (l *spreads) remove(one *spread) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if list := slices.DeleteFunc(slices.Clone(l.all()), func(o *spread) bool { return o == one }); len(list) > 0 {
		l.list.Store(&list)
		return
	}
	l.list.Store(nil)
}

func (l *spreads) all() []*spread {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}

// look has all of them looked at, because a rank has a prompt to pass on, or is free to get another one.
func (l *spreads) look() {
	for _, one := range l.all() {
		one.look()
	}
}
