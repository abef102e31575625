package tokenizer

import (
	"context"
	"sync"

	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// flights makes concurrent requests for the same ids share one call. A flight lives
// as long as a request waits for it: the last waiter to leave cancels it.
type flights struct {
	mu     sync.Mutex
	open   map[cache.Key]*flight // guarded by mu
	closed bool                  // guarded by mu; no flight starts any more
	wg     sync.WaitGroup
}

type flight struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int // guarded by flights.mu

	// set before done is closed
	entry  *entry
	source Source
	err    error
}

type work func(context.Context) (*entry, Source, error)

// join returns the flight for key, starting it when there is none. Each join needs one leave.
func (f *flights) join(ctx context.Context, key cache.Key, do work) (fl *flight, shared bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl = f.open[key]; fl != nil {
		fl.waiters++
		return fl, true
	}
	// the flight outlives its first caller when others have joined, and keeps its trace
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	fl = &flight{done: make(chan struct{}), cancel: cancel, waiters: 1}
	if f.closed {
		fl.err = context.Canceled
		close(fl.done)
		cancel()
		return fl, false
	}
	f.open[key] = fl
	f.wg.Go(func() {
		fl.entry, fl.source, fl.err = do(own)
		f.mu.Lock()
		if f.open[key] == fl {
			delete(f.open, key)
		}
		f.mu.Unlock()
		close(fl.done)
		cancel()
	})
	return fl, false
}

// under reports whether a flight for key is under way.
func (f *flights) under(key cache.Key) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open[key] != nil
}

// detached starts a flight that needs no waiting caller; refused is called when there is one
// for the key already.
func (f *flights) detached(ctx context.Context, key cache.Key, do work, refused func()) {
	if fl, shared := f.join(ctx, key, do); shared {
		f.leave(key, fl)
		refused()
	}
}

// leave says that one caller no longer waits.
func (f *flights) leave(key cache.Key, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.waiters--
	if fl.waiters == 0 {
		fl.cancel()
		if f.open[key] == fl {
			delete(f.open, key) // a newcomer must not join a cancelled flight
		}
	}
}

// wait joins, waits for the result or the caller's end, and leaves.
func (f *flights) wait(ctx context.Context, key cache.Key, do work) (e *entry, s Source, shared bool, err error) {
	fl, shared := f.join(ctx, key, do)
	defer f.leave(key, fl)
	select {
	case <-fl.done:
		return fl.entry, fl.source, shared, fl.err
	case <-ctx.Done():
		return nil, "", shared, ctx.Err()
	}
}

// waitOr is wait that ends early, with neither entry nor error, once enough says so after a
// signal from news. The flight continues without the caller.
func (f *flights) waitOr(ctx context.Context, key cache.Key, do work, news func() <-chan struct{}, enough func() bool) (e *entry, s Source, shared bool, err error) {
	fl, shared := f.join(ctx, key, do)
	for {
		changed := news()
		if enough() {
			return nil, "", shared, nil // still counted as waiting, so that it is not cancelled
		}
		select {
		case <-fl.done:
			f.leave(key, fl)
			return fl.entry, fl.source, shared, fl.err
		case <-ctx.Done():
			f.leave(key, fl)
			return nil, "", shared, ctx.Err()
		case <-changed:
		}
	}
}

// close cancels the open flights, waits for their end, and stops new flights: a join then gets context.Canceled.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	for _, fl := range f.open {
		fl.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
