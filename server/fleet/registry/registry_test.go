package registry_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	goleak.VerifyTestMain(m)
}

// fakeReplica answers what the registry asks, as vLLM does.
type fakeReplica struct {
	*httptest.Server
	mu     sync.Mutex
	health int
	models string
}

func newFakeReplica(t *testing.T) *fakeReplica {
	t.Helper()
	f := &fakeReplica{health: 200, models: `{"data":[{"id":"base","root":"/w","max_model_len":4096},{"id":"tune","parent":"base"}]}`}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch r.URL.Path {
		case "/health":
			w.WriteHeader(f.health)
		case "/v1/models":
			fmt.Fprint(w, f.models)
		case "/version":
			fmt.Fprint(w, `{"version":"0.24.0"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// fast is a configuration whose probes follow each other quickly.
func fast(specs ...registry.Spec) registry.Config {
	c := registry.DefaultConfig()
	c.Replicas = specs
	c.Probe.Interval, c.Probe.MaxInterval, c.Probe.ModelsInterval = 10*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	return c
}

// start runs a registry until the test ends.
func start(t *testing.T, config registry.Config, params registry.Params) *registry.Registry {
	t.Helper()
	r := registry.New(config, params)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-time.After(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within 10s", what)
}

func state(r *registry.Registry, id replica.ID) replica.State {
	if rep, ok := r.Snapshot().Replica(id); ok {
		return rep.State
	}
	return 255
}

func TestAControlServiceIsOneAddressForAllRanks(t *testing.T) {
	f := newFakeReplica(t)
	r := start(t, fast(registry.Spec{ID: "a", URL: f.URL, Ranks: 2, Events: registry.EventsSpec{Endpoint: "grpc://{host}:50051"}}), registry.Params{})
	eventually(t, "known", func() bool { _, ok := r.Snapshot().Replica("a"); return ok })
	rep, _ := r.Snapshot().Replica("a")
	want := []replica.Events{{Endpoint: "grpc://127.0.0.1:50051"}, {Endpoint: "grpc://127.0.0.1:50051", Rank: 1}}
	if !slices.Equal(rep.Events, want) {
		t.Errorf("events: %+v, want %+v", rep.Events, want)
	}
	bad := registry.DefaultConfig()
	bad.Replicas = []registry.Spec{{ID: "a", URL: f.URL, Events: registry.EventsSpec{Endpoint: "grpc://{host}:50051", Bind: true}}}
	if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "cannot be bound") {
		t.Errorf("Validate() of a service to bind = %v", err)
	}
}

func TestAReplicaBecomesReadyAndIsFoundByModel(t *testing.T) {
	f := newFakeReplica(t)
	config := fast(registry.Spec{ID: "a", URL: f.URL + "/", Ranks: 2, Events: registry.EventsSpec{Endpoint: "tcp://*:5557", Replay: "tcp://{host}:5657"}})
	config.Aliases = map[string]string{"gpt": "base"}
	r := start(t, config, registry.Params{})
	eventually(t, "ready", func() bool { return state(r, "a") == replica.StateReady })

	s := r.Snapshot()
	for name, want := range map[string]registry.Pool{
		"base": {Model: "base", Served: "base"}, "tune": {Model: "tune", Served: "tune", Adapter: "tune"}, "gpt": {Model: "gpt", Served: "base"},
	} {
		p, ok := s.Pool(name)
		if !ok || p.Model != want.Model || p.Served != want.Served || p.Adapter != want.Adapter || len(p.Replicas) != 1 || p.Ready() != 1 {
			t.Errorf("Pool(%q) = %+v, %v, want %+v with one ready replica", name, p, ok, want)
		}
	}
	if _, ok := s.Pool("other"); ok {
		t.Error("a pool for a model that nobody serves")
	}
	rep, _ := s.Replica("a")
	if rep.URL != f.URL || rep.Version != "0.24.0" || rep.Life != 1 || len(rep.Slots) != 2 {
		t.Errorf("replica: %+v", rep)
	}
	if e := rep.Events; len(e) != 2 || e[0].Endpoint != "tcp://127.0.0.1:5557" || e[1].Endpoint != "tcp://127.0.0.1:5558" || e[1].Replay != "tcp://127.0.0.1:5658" {
		t.Errorf("events: %+v", e)
	}
	if got, rank, ok := s.BySlot(rep.Slots[1]); !ok || got != rep || rank != 1 {
		t.Errorf("BySlot: %v, %d, %v", got, rank, ok)
	}
}
