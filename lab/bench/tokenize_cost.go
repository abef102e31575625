package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// cpu measures the processor time per request turn by turn: all conversations take a turn, and
// their background work is waited for.
func (b tokenizeBench) cpu(ctx context.Context, r *tokenizeReport) error {
	fleet, err := startFakeFleet(ctx, b.replicas)
	defer fleet.kill()
	if err != nil {
		return err
	}
	pool, stop := runPool(ctx, routerDefaults())
	defer stop()
	perTurn := make([]time.Duration, b.turns)
	// the first conversations teach the pool; the measured ones start fresh
	for lap := range 2 {
		talks := b.talks(1000 * (lap + 1))
		for t := range b.turns {
			bodies := make([][]byte, len(talks))
			for i, k := range talks {
				k.turn()
				bodies[i] = k.body()
			}
			runtime.GC()
			before := measure.CPUTime()
			if err := b.step(ctx, pool, fleet, bodies); err != nil {
				return err
			}
			perTurn[t] = (measure.CPUTime() - before) / time.Duration(len(talks))
		}
	}
	last := len(perTurn) - 1
	r.Turn1CPUMicros = float64(perTurn[0]) / 1e3
	// the mean of the last turns: every sixteenth delta is checked in full
	ends := perTurn[max(1, last-4):]
	var sum time.Duration
	for _, d := range ends {
		sum += d
	}
	r.Turn40CPUMicros = float64(sum) / float64(len(ends)) / 1e3
	r.Turn40OverTurn1 = r.Turn40CPUMicros / max(r.Turn1CPUMicros, 1)
	return nil
}

// step sends one request of each conversation, eight at a time, and waits for the background.
func (b tokenizeBench) step(ctx context.Context, pool *tokenizer.Pool, fleet *fakeFleet, bodies [][]byte) error {
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	errs := make(chan error, len(bodies))
	for _, body := range bodies {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			_, enc, _, err := tokenizeStage(ctx, pool, fleet, body)
			enc.Release()
			errs <- err
		})
	}
	wg.Wait()
	pool.WaitIdle()
	for range bodies {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// exact measures a hit in the exact cache with the body of a conversation's last turn: all of the
// router's work from the body's bytes to the ids; the encoding alone; and with the body read as if it were new.
func (b tokenizeBench) exact(ctx context.Context, r *tokenizeReport) error {
	cfg := routerDefaults()
	pool := tokenizer.New(cfg, tokenizer.Params{Sender: inProcess{}})
	fleet := &fakeFleet{replicas: []*replica.Replica{{ID: "x", URL: "http://x", State: replica.StateReady, Version: "0.17.0"}}}
	k := b.talk(1)
	for range b.turns {
		k.turn()
	}
	body := k.body()
	req, enc, _, err := tokenizeStage(ctx, pool, fleet, body)
	if err != nil || enc.Known() == 0 {
		return fmt.Errorf("warm the exact cache: %w", err)
	}
	enc.Release()
	const rounds = 2000
	hit := func(read func(openai.Params) (*openai.Request, error)) (time.Duration, error) {
		took := make([]time.Duration, rounds)
		for i := range took {
			began := time.Now()
			if read != nil {
				if req, err = read(openai.Params{Route: openai.RouteChat, Body: body}); err != nil {
					return 0, err
				}
				req.Prompt.Model = benchModel
			}
			enc, err := pool.Encode(ctx, tokenizer.Request{Prompt: &req.Prompt, Replicas: fleet.replicas, Pool: benchModel})
			if err != nil || enc.Source != tokenizer.SourceExactCache {
				return 0, fmt.Errorf("not an exact hit: %s, %w", enc.Source, err)
			}
			took[i] = time.Since(began)
			enc.Release()
		}
		return measure.Median(took), nil
	}
	encoded, err := hit(nil)
	if err != nil {
		return err
	}
	readAnew, err := hit(openai.Read)
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	whole, err := hit(openai.NewMemory(1 << 20).Read)
	runtime.ReadMemStats(&after)
	r.ExactHitMicros, r.ExactHitEncodeMicros, r.ExactHitReadMicros = float64(whole)/1e3, float64(encoded)/1e3, float64(readAnew)/1e3
	r.ExactHitAllocs = float64(after.Mallocs-before.Mallocs) / rounds
	return err
}

// inProcess answers as the fake replica, at once and without a network.
type inProcess struct{}

// Do implements remote.Sender.
func (inProcess) Do(_ context.Context, _ upstream.Target, r *upstream.Request) (*upstream.Response, error) {
	answer := fakeTokenize(r.Body, 0)
	resp := &upstream.Response{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(answer))}
	resp.Restore(answer)
	return resp, nil
}

// soakRun sends distinct prompts past a small cache and looks at the memory.
func (b tokenizeBench) soakRun(ctx context.Context, r *tokenizeReport) error {
	cfg := routerDefaults()
	cfg.CacheBytes = 64 << 20
	pool := tokenizer.New(cfg, tokenizer.Params{Sender: inProcess{}})
	fleet := &fakeFleet{replicas: []*replica.Replica{{ID: "x", URL: "http://x", State: replica.StateReady, Version: "0.17.0"}}}
	before := liveHeap()
	r.RSSBeforeSoak = residentBytes()
	tail := strings.Repeat("all work and no play makes a dull day ", 20)
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < b.soak; i += workers {
				body := fmt.Appendf(nil, `{"model":"bench","messages":[{"role":"user","content":"%d %s"}]}`, i, tail)
				_, enc, _, err := tokenizeStage(ctx, pool, fleet, body)
				if err != nil {
					errs <- err
					return
				}
				enc.Release()
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	r.CacheLimit, r.CacheBytes, r.RSS = int64(cfg.CacheBytes), pool.CacheStats().Bytes, residentBytes()
	r.HeapGrowth = liveHeap() - before
	runtime.KeepAlive(pool)
	return nil
}

// liveHeap is the reachable memory after a collection.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// residentBytes is the process's resident memory, 0 where /proc is missing.
func residentBytes() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if kb, found := strings.CutPrefix(line, "VmRSS:"); found {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64) // 0 when unreadable
			return n << 10
		}
	}
	return 0
}
