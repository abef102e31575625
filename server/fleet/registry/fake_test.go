package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// fleet is a network of replicas without sockets, so that it works in virtual time.
type fleet struct {
	mu    sync.Mutex
	hosts map[string]*host
}

// host is one replica as its probes see it.
type host struct {
	status  int           // of /health; 0: nobody listens
	hangs   bool          // takes requests and never answers
	slow    time.Duration // before each answer
	fails   error         // of the dial; nil: none
	models  string        // the body of /v1/models
	version string
	sources string // the body of /kv_event_sources; empty: no such route
	key     string // refuses requests without it
	asked   []time.Time
}

func newFleet(names ...string) *fleet {
	f := &fleet{hosts: map[string]*host{}}
	for _, name := range names {
		f.hosts[name] = &host{status: 200, models: `{"data":[{"id":"base"}]}`, version: "0.24.0"}
	}
	return f
}

func (f *fleet) set(name string, change func(h *host)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.hosts[name])
}

// probes returns when /health of a host was asked.
func (f *fleet) probes(name string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.hosts[name].asked)
}

func (f *fleet) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.hosts[req.URL.Hostname()]
	if h == nil {
		return nil, syscall.ECONNREFUSED
	}
	if req.URL.Path == "/health" {
		h.asked = append(h.asked, time.Now())
	}
	if h.fails != nil {
		return nil, h.fails
	}
	if h.status == 0 {
		return nil, syscall.ECONNREFUSED
	}
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	for wait := h.slow; wait > 0 || h.hangs; wait -= 10 * time.Millisecond { // what was asked while it hung is answered when it goes on
		f.mu.Unlock()
		err := sleep(req.Context(), 10*time.Millisecond)
		f.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	status, body := http.StatusOK, ""
	switch req.URL.Path {
	case "/health":
		status = h.status
	case "/v1/models":
		body = h.models
	case "/version":
		body = fmt.Sprintf(`{"version":%q}`, h.version)
	case "/kv_event_sources":
		if body = h.sources; body == "" {
			status = http.StatusNotFound
		}
	default:
		status = http.StatusNotFound
	}
	if h.key != "" && req.Header.Get("Authorization") != "Bearer "+h.key {
		status = http.StatusUnauthorized
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: req, Header: http.Header{}}, nil
}

func sleep(ctx context.Context, wait time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return nil
	}
}

func spec(name string) registry.Spec {
	return registry.Spec{ID: replica.ID(name), URL: "http://" + name + ":8000"}
}

// watcher is an observer that records its calls and checks the promises about them.
type watcher struct {
	t     *testing.T
	mu    sync.Mutex
	log   []string
	lives []uint64 // of the engines that restarted
	inUse map[replica.Slot]replica.ID
}

func (w *watcher) RankAdded(slot replica.Slot, r *replica.Replica, rank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old, taken := w.inUse[slot]; taken {
		w.t.Errorf("slot %d given to %s while %s has it", slot, r.ID, old)
	}
	if r.Slots[rank] != slot {
		w.t.Errorf("slot %d given as rank %d of %v", slot, rank, r.Slots)
	}
	w.inUse[slot] = r.ID
	w.log = append(w.log, fmt.Sprintf("+%s/%d=%d", r.ID, rank, slot))
}

func (w *watcher) RankRemoved(slot replica.Slot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, taken := w.inUse[slot]; !taken {
		w.t.Errorf("slot %d removed, nobody has it", slot)
	}
	w.log = append(w.log, fmt.Sprintf("-%s=%d", w.inUse[slot], slot))
	delete(w.inUse, slot)
}

func (w *watcher) ReplicaRestarted(r *replica.Replica, _ time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lives = append(w.lives, r.Life)
}

func (w *watcher) FleetChanged(s *registry.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	shown := 0
	for _, r := range s.Replicas {
		for rank, slot := range r.Slots {
			shown++
			if w.inUse[slot] != r.ID {
				w.t.Errorf("the snapshot shows slot %d of %s, which was not announced", slot, r.ID)
			}
			if back, i, ok := s.BySlot(slot); !ok || back != r || i != rank {
				w.t.Errorf("BySlot(%d) is not rank %d of %s", slot, rank, r.ID)
			}
		}
	}
	if shown != len(w.inUse) {
		w.t.Errorf("the snapshot shows %d slots, %d are announced", shown, len(w.inUse))
	}
}

// restarts are the lives that restarted engines have begun.
func (w *watcher) restarts() []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lives)
}

func (w *watcher) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

// virtual runs a test in virtual time with a running registry.
func virtual(t *testing.T, f *fleet, config registry.Config, params registry.Params, test func(t *testing.T, r *registry.Registry, w *watcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		params.Client = &http.Client{Transport: f}
		w := &watcher{t: t, inUse: map[replica.Slot]replica.ID{}}
		params.Observer = w
		r := registry.New(config, params)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		test(t, r, w)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := r.Drain(t.Context(), "x", registry.DrainOptions{Force: true}); !errors.Is(err, registry.ErrClosed) {
			t.Errorf("a call after Run ended: %v, want ErrClosed", err)
		}
	})
}

// pass lets virtual time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func listed(specs ...registry.Spec) registry.Config {
	c := registry.DefaultConfig()
	c.Replicas = specs
	return c
}

func wantState(t *testing.T, r *registry.Registry, id replica.ID, want replica.State) {
	t.Helper()
	rep, ok := r.Snapshot().Replica(id)
	if !ok {
		t.Errorf("%s is not there, want %s", id, want)
	} else if rep.State != want {
		t.Errorf("%s is %s, want %s (%+v)", id, rep.State, want, r.Snapshot().Details(id))
	}
}
