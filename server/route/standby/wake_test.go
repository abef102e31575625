package standby_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/standby"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// dormitory has engines that sleep. It is also the demand for them.
type dormitory struct {
	names []string // URLs of the engines, in order

	mu     sync.Mutex
	sleep  map[string]enginestats.Sleep // by URL; guarded by mu
	calls  []string                     // URLs of the engines that were woken, or were to be; guarded by mu
	answer int                          // to /wake_up, 0 for an answer that does not come; guarded by mu
	wanted int                          // guarded by mu
}

func (d *dormitory) engine(url *string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			io.WriteString(w, `{"version":"0.33.0"}`)
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","max_model_len":1024}]}`)
		case "/wake_up":
			d.mu.Lock()
			status := d.answer
			d.calls = append(d.calls, *url)
			if status == http.StatusOK {
				d.sleep[*url] = enginestats.Awake
			}
			d.mu.Unlock()
			if status == 0 {
				<-r.Context().Done()
				return
			}
			w.WriteHeader(status)
		}
	}
}

func (d *dormitory) Sleep(of *replica.Replica) enginestats.Sleep {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sleep[of.URL]
}

func (*dormitory) Reread(*replica.Replica) {}

func (d *dormitory) WantedNow(string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wanted
}

// change changes the state.
func (d *dormitory) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *dormitory) woken() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// sleepers starts engines in these states behind a registry, and a Room that runs.
func sleepers(t *testing.T, answer int, states ...enginestats.Sleep) (*dormitory, *standby.Room) {
	t.Helper()
	d := &dormitory{sleep: map[string]enginestats.Sleep{}, answer: answer}
	rc := registry.DefaultConfig()
	for i, state := range states {
		url := new(string)
		srv := httptest.NewServer(d.engine(url))
		t.Cleanup(srv.Close)
		*url = srv.URL
		d.names = append(d.names, srv.URL)
		d.sleep[srv.URL] = state
		rc.Replicas = append(rc.Replicas, registry.Spec{ID: replica.ID(fmt.Sprintf("r%d", i)), URL: srv.URL})
	}
	known := registry.New(rc, registry.Params{})
	client := upstream.New(upstream.DefaultConfig(), upstream.Params{})
	c := standby.DefaultConfig()
	c.Models, c.Wake, c.MaxWait = []string{"m"}, true, 20*time.Second
	r := standby.New(c, standby.Params{Registry: known, Engines: d, Client: client, Demand: d})
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = known.Run(ctx) })
	all.Go(func() { _ = client.Run(ctx) })
	all.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() {
		end()
		all.Wait()
	})
	until(t, "all engines are ready", func() bool {
		pool, ok := known.Snapshot().Pool("m")
		return ok && len(pool.Replicas) == len(states) && !slices.ContainsFunc(pool.Replicas, func(one *replica.Replica) bool { return one.State != replica.StateReady })
	})
	return d, r
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func TestRequestsWakeOneEngine(t *testing.T) {
	t.Parallel()
	d, r := sleepers(t, http.StatusOK, enginestats.DiscardAll, enginestats.WeightsOffloaded, enginestats.WeightsOffloaded)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := r.Wait(t.Context(), "m", 1, nothing); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := d.woken(); !slices.Equal(got, d.names[1:2]) {
		t.Errorf("%v were woken, want %v: the weights of the first are gone", got, d.names[1:2])
	}
}

func TestDemandWakesFurtherEngines(t *testing.T) {
	t.Parallel()
	d, _ := sleepers(t, http.StatusOK, enginestats.Awake, enginestats.WeightsOffloaded, enginestats.WeightsOffloaded, enginestats.WeightsOffloaded)
	time.Sleep(1200 * time.Millisecond) // a look
	if got := d.woken(); len(got) > 0 {
		t.Fatalf("%v were woken without any demand", got)
	}
	d.change(func() { d.wanted = 3 })
	until(t, "two engines are woken", func() bool { return len(d.woken()) == 2 })
	if got := d.woken(); slices.Contains(got, d.names[3]) || slices.Contains(got, d.names[0]) {
		t.Errorf("%v were woken, want the first two that sleep", got)
	}
}

func TestAnEngineThatCannotBeWokenIsLeftAlone(t *testing.T) {
	t.Parallel()
	d, r := sleepers(t, http.StatusNotFound, enginestats.WeightsOffloaded, enginestats.WeightsOffloaded)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := r.Wait(ctx, "m", 1, nothing)
		left <- err
	}()
	until(t, "both were tried", func() bool { return len(d.woken()) == 2 })
	time.Sleep(1200 * time.Millisecond) // another look
	if got := d.woken(); len(got) != 2 {
		t.Errorf("engines that do not know the call were asked again: %v", got)
	}
	d.change(func() { d.sleep[d.names[1]] = enginestats.Awake }) // by its operator
	if err := <-left; err != nil {
		t.Error(err)
	}
}

func TestAWakeThatHangsEndsWithTheRouter(t *testing.T) {
	t.Parallel()
	d, r := sleepers(t, 0, enginestats.WeightsOffloaded)
	go func() { _, _ = r.Wait(t.Context(), "m", 1, nothing) }()
	until(t, "the engine was asked", func() bool { return len(d.woken()) == 1 })
}
