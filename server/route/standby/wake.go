package standby

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Engines knows which engines sleep.
type Engines interface {
	// Sleep is the deepest sleep of the replica's ranks.
	Sleep(of *replica.Replica) enginestats.Sleep
	// Reread requests fresh metrics of the replica's engine.
	Reread(of *replica.Replica)
}

// Caller sends requests to replicas; *upstream.Client does.
type Caller interface {
	Do(ctx context.Context, t upstream.Target, r *upstream.Request) (*upstream.Response, error)
}

const (
	// wakeTimeout bounds one call of /wake_up: the weights come from the machine's memory.
	wakeTimeout = 5 * time.Minute
	// seenEach is how often the metrics of an engine that was woken are read until they say so, seenWithin for how long.
	seenEach, seenWithin = 150 * time.Millisecond, 30 * time.Second
	// An engine that could not be woken is left alone for failedRest, one that does not know the call for refusedRest.
	failedRest, refusedRest = 10 * time.Second, 5 * time.Minute
)

// The results of a wake.
const (
	woken   = "woken"
	refused = "refused"
	failed  = "failed"
)

// waker wakes engines, each once at a time.
type waker struct {
	engines Engines
	client  Caller
	log     *slog.Logger
	counted metric.Int64Counter
	calls   sync.WaitGroup

	mu    sync.Mutex
	wakes map[replica.ID]*wake // that run or rest; guarded by mu
}

// wake is the wake of one engine. Its waker's mu guards it.
type wake struct {
	running bool
	until   time.Time // it rests
}

func newWaker(p Params, s *instruments.Set) *waker {
	w := &waker{engines: p.Engines, client: p.Client, log: p.Log, wakes: map[replica.ID]*wake{}}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.counted = s.CounterBy("kvpilot.pool.wakes", "{wake}", "Calls to wake engines (scaling.wake), by result: woken, refused (an unknown call) or failed.",
		instruments.Label("result", woken), instruments.Label("result", refused), instruments.Label("result", failed))
	return w
}

// some wakes as many of the sleeping replicas as are missing; calls under way count. They are taken by their ids, so that all routers of a fleet
// wake the same ones.
func (w *waker) some(ctx context.Context, missing int, sleeping []*replica.Replica, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sleeping = slices.Clone(sleeping)
	slices.SortFunc(sleeping, func(a, b *replica.Replica) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for _, one := range sleeping {
		if known := w.wakes[one.ID]; known != nil && known.running {
			missing--
		}
	}
	for _, one := range sleeping {
		known := w.wakes[one.ID]
		if missing <= 0 {
			return
		}
		if known != nil && (known.running || now.Before(known.until)) {
			continue
		}
		missing--
		known = &wake{running: true}
		w.wakes[one.ID] = known
		w.calls.Go(func() {
			rest := w.wake(ctx, one)
			w.mu.Lock()
			defer w.mu.Unlock()
			if known.running, known.until = false, time.Now().Add(rest); rest == 0 {
				delete(w.wakes, one.ID)
			}
		})
	}
}

// wake wakes an engine, waits until its metrics say that it is awake, and returns how long it is not to be tried again.
func (w *waker) wake(ctx context.Context, one *replica.Replica) (rest time.Duration) {
	began := time.Now()
	status, err := w.call(ctx, one)
	log := w.log.With("replica", string(one.ID), "took", time.Since(began).Round(time.Millisecond))
	result := woken
	switch {
	case ctx.Err() != nil:
		return 0 // the router stops
	case err != nil:
		log.Warn("a sleeping engine could not be woken", "error", err)
		result, rest = failed, failedRest
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		log.Warn("a sleeping engine does not know /wake_up: vLLM serves it with VLLM_SERVER_DEV_MODE=1 alone", "status", status)
		result, rest = refused, refusedRest
	case status != http.StatusOK:
		log.Warn("a sleeping engine could not be woken", "status", status)
		result, rest = failed, failedRest
	default:
		log.Info("a sleeping engine was woken")
	}
	w.counted.Add(context.Background(), 1, instruments.Label("result", result))
	if result == woken && !w.seen(ctx, one) {
		rest = failedRest
	}
	return rest
}

// call has the engine wake up, and returns the status of its answer.
func (w *waker) call(ctx context.Context, one *replica.Replica) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	resp, err := w.client.Do(ctx, upstream.Target{Replica: one}, &upstream.Request{Method: http.MethodPost, Path: "/wake_up"})
	if err != nil {
		return 0, err
	}
	defer resp.Close()
	if _, err := resp.ReadAll(maxReply); err != nil {
		return 0, err
	}
	return resp.Status, nil
}

// maxReply bounds the answer to a call.
const maxReply = 64 << 10

// seen waits until the engine's metrics say that it is awake; false when they do not in time.
func (w *waker) seen(ctx context.Context, one *replica.Replica) bool {
	ctx, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	again := time.NewTicker(seenEach)
	defer again.Stop()
	for w.engines.Sleep(one) != enginestats.Awake {
		w.engines.Reread(one)
		select {
		case <-again.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
