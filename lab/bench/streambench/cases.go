package streambench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

func (b *bench) streamCase(ctx context.Context, name string, n, chunks int, every time.Duration, rounds int) error {
	if err := b.setUpstream(ctx, chunks, every, false); err != nil {
		return err
	}
	// A router closes idle connections before vLLM does, after a few seconds, so the connections of its last turn are gone:
	// short streams open new ones before the clock runs, for every subject alike.
	b.warm = func(ctx context.Context, p *process) error {
		if err := b.setUpstream(ctx, 2, every, false); err != nil {
			return err
		}
		if _, err := streams(ctx, p.address, n, every, 0); err != nil {
			return err
		}
		return b.setUpstream(ctx, chunks, every, false)
	}
	defer func() { b.warm = nil }()
	return b.turns(ctx, name, rounds, func(ctx context.Context, p *process) ([]time.Duration, int, error) {
		latencies, err := streams(ctx, p.address, n, every, uint64(b.round))
		return latencies, n * chunks, err
	})
}

// allocCase counts the allocations of one more chunk: the allocations of long streams less those of short ones, so that the fixed cost of
// a stream does not count. The median of some turns counts, since a router allocates for other things, too, and some of them only once.
func (b *bench) allocCase(ctx context.Context, n int) error {
	const short, long, turns = 20, 320, 5
	b.counting = true
	defer func() { b.counting = false }()
	for _, p := range b.subjects {
		if p.debug == "" {
			continue
		}
		mallocs := map[int][]float64{}
		for i := range 2*turns + 1 {
			chunks := short
			if i%2 == 0 && i > 0 {
				chunks = long
			}
			if err := b.setUpstream(ctx, chunks, 5*time.Millisecond, false); err != nil {
				return err
			}
			one, err := b.turn(ctx, p, func(ctx context.Context, p *process) ([]time.Duration, int, error) {
				latencies, err := streams(ctx, p.address, n, 5*time.Millisecond, 0)
				return latencies, n, err
			})
			if err != nil {
				return fmt.Errorf("allocs, %s: %w", p.name, err)
			}
			if i > 0 { // the first turn opens connections and fills caches
				mallocs[chunks] = append(mallocs[chunks], float64(one.mallocs))
			}
		}
		perChunk := round2(max(measure.Median(mallocs[long])-measure.Median(mallocs[short]), 0) / float64(n*(long-short)))
		b.add(Result{Case: "allocs", Subject: p.name, AllocsPerChunk: &perChunk})
	}
	return nil
}

func (b *bench) unaryCase(ctx context.Context, name string, workers, total, size, rounds int) error {
	return b.turns(ctx, name, rounds, func(ctx context.Context, p *process) ([]time.Duration, int, error) {
		latencies, err := unary(ctx, p.address, workers, total, size)
		return latencies, len(latencies), err
	})
}

// turns runs the load against each subject in turn, rounds times, and adds up. Every other round
// goes the other way round, so that none of them always comes first.
func (b *bench) turns(ctx context.Context, name string, rounds int, load func(context.Context, *process) ([]time.Duration, int, error)) error {
	all := make([][]round, len(b.subjects))
	for i := range rounds + 1 {
		b.round = i
		for k := range b.subjects {
			s := k
			if i%2 == 1 {
				s = len(b.subjects) - 1 - k
			}
			p := b.subjects[s]
			one, err := b.turn(ctx, p, load)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, p.name, err)
			}
			if i > 0 { // the first turn opens connections and fills caches
				all[s] = append(all[s], one)
			}
		}
	}
	if err := b.profile(ctx, name, load); err != nil {
		return err
	}
	named := func(name string) int {
		return slices.IndexFunc(b.subjects, func(p *process) bool { return p.name == name })
	}
	b.addCompared(name, all, named(ReverseProxy), named(Direct))
	return nil
}

// profile takes a CPU profile of kvpilot during one more turn; where routers are compared, of each
// of them.
func (f *field) profile(ctx context.Context, name string, load func(context.Context, *process) ([]time.Duration, int, error)) error {
	for _, p := range f.subjects {
		file := name
		switch p.name {
		case Kvpilot:
		case Followed, Unfollowed:
			file += strings.TrimPrefix(p.name, Kvpilot)
		case tracesNone, tracesTail, tracesAll:
			file += "-" + strings.TrimSuffix(p.name, "%")
		default:
			continue
		}
		if f.options.Profiles == "" {
			return nil
		}
		profile := make(chan error, 1)
		go func() {
			text, err := measure.Get(ctx, p.debug, "/debug/pprof/profile?seconds=5")
			if err == nil {
				err = os.WriteFile(filepath.Join(f.options.Profiles, file+".pprof"), []byte(text), 0o600)
			}
			profile <- err
		}()
		var err error
		for began := time.Now(); err == nil && time.Since(began) < 5*time.Second; {
			_, _, err = load(ctx, p)
		}
		if err := errors.Join(err, <-profile); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) turn(ctx context.Context, p *process, load func(context.Context, *process) ([]time.Duration, int, error)) (round, error) {
	var one round
	var err error
	if b.warm != nil {
		if err := b.warm(ctx, p); err != nil {
			return one, err
		}
	}
	before, err := b.spent(ctx, p)
	if err != nil {
		return one, err
	}
	began := time.Now()
	if one.latencies, one.units, err = load(ctx, p); err != nil {
		return one, err
	}
	one.wall = time.Since(began)
	after, err := b.spent(ctx, p)
	one.cpu, one.mallocs = after.cpu-before.cpu, after.mallocs-before.mallocs
	return one, err
}

// spent is the process's use so far. Allocations are read in their own case only: the profile
// that counts them costs milliseconds of the process's time.
func (b *bench) spent(ctx context.Context, p *process) (s round, err error) {
	if b.counting {
		if s.mallocs, err = p.memory(ctx, false); err != nil {
			return s, err
		}
	}
	s.cpu, err = p.cpu()
	return s, err
}

// idleCase opens n streams that wait after their first chunk, and weighs them.
func (b *bench) idleCase(ctx context.Context, n int) error {
	if err := b.setUpstream(ctx, 2, time.Hour, true); err != nil {
		return err
	}
	for _, p := range b.subjects {
		if len(p.pids) == 0 {
			continue // no proxy, no memory
		}
		before, err := p.rss(ctx)
		if err != nil {
			return err
		}
		conns, err := openMany(ctx, p.address, n)
		if err == nil {
			var after int64
			after, err = p.rss(ctx)
			b.add(Result{Case: fmt.Sprintf("idle-%d", n), Subject: p.name, BytesPerIdle: (after - before) / int64(n)})
			err = errors.Join(err, b.heapProfile(ctx, p))
		}
		for _, c := range conns {
			c.Close()
		}
		if err != nil {
			return fmt.Errorf("idle, %s: %w", p.name, err)
		}
		if _, err := b.quiet(ctx); err != nil {
			return err
		}
	}
	return nil
}

// heapProfile saves kvpilot's heap profile.
func (f *field) heapProfile(ctx context.Context, p *process) error {
	if f.options.Profiles == "" || p.name != Kvpilot {
		return nil
	}
	for name, path := range map[string]string{"idle-heap.pprof": "/debug/pprof/heap", "idle-memstats.txt": "/debug/pprof/heap?debug=1"} {
		text, err := measure.Get(ctx, p.debug, path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(f.options.Profiles, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func openMany(ctx context.Context, address string, n int) ([]net.Conn, error) {
	payload := request(address, true, 200)
	var mu sync.Mutex
	var conns []net.Conn
	var first error
	var group sync.WaitGroup
	for w := range 64 {
		group.Go(func() {
			for i := w; i < n; i += 64 {
				c, err := openHeld(ctx, address, payload)
				mu.Lock()
				if err == nil {
					conns = append(conns, c)
				} else if first == nil {
					first = err
				}
				stop := first != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	group.Wait()
	return conns, first
}

// abortCase opens and leaves n streams, and counts the remains.
func (b *bench) abortCase(ctx context.Context, n int) error {
	if err := b.setUpstream(ctx, 2, time.Hour, true); err != nil {
		return err
	}
	for _, p := range b.subjects {
		if p.debug == "" {
			continue
		}
		before, err := settled(ctx, p, 0)
		if err != nil {
			return err
		}
		for done := 0; done < n; done += 500 {
			conns, err := openMany(ctx, p.address, min(500, n-done))
			for _, c := range conns {
				c.Close()
			}
			if err != nil {
				return fmt.Errorf("aborts, %s: %w", p.name, err)
			}
		}
		active, err := b.quiet(ctx)
		if err != nil {
			return err
		}
		after, err := settled(ctx, p, before)
		if err != nil {
			return err
		}
		goroutines := max(after-before, 0)
		booked, err := p.reservations(ctx)
		if err != nil {
			return err
		}
		leaked := goroutines + active + booked
		b.add(Result{Case: fmt.Sprintf("aborted-%d", n), Subject: p.name, Leaks: Leaks{Leaked: &leaked, LeakedGoroutines: &goroutines, LeakedReservations: &booked}})
	}
	return nil
}

// settled waits until the number of goroutines is at most want, or does not fall any more.
func settled(ctx context.Context, p *process, want int) (int, error) {
	last := 1 << 30
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(500 * time.Millisecond) {
		n, err := p.goroutines(ctx)
		if err != nil || n <= want || time.Now().After(deadline) || n == last && want == 0 {
			return n, err
		}
		last = n
	}
}
