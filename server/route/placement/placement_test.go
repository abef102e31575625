package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

func TestConfigNamesEachMistake(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{Interval: time.Millisecond, Headroom: 0.5, Idle: -1}.Validate()
	for _, field := range []string{"interval", "headroom", "idle", "max_per_replica"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

func TestAdaptersAreWantedByTheirShareOfTheRequests(t *testing.T) {
	for _, tt := range []struct {
		uses, total float64
		n, want     int
	}{
		{0, 0, 8, 1}, {100, 100, 8, 8}, {5, 5, 8, 1}, {15, 15, 8, 2}, {60, 600, 8, 2}, {300, 600, 8, 8}, {150, 600, 8, 4}, {1, 600, 8, 1}, {100, 100, 1, 1},
	} {
		if got := wanted(tt.uses, tt.total, tt.n, 2); got != tt.want {
			t.Errorf("%v of %v requests, %d replicas: %d, want %d", tt.uses, tt.total, tt.n, got, tt.want)
		}
	}
}

// engine is a vLLM with adapters, as far as the rule needs one.
type engine struct {
	mu    sync.Mutex
	list  []string // guarded by mu
	calls []string // guarded by mu
	// change answers a call, nil as vLLM does.
	change http.HandlerFunc
	// late is how long after its load an adapter is listed.
	late   time.Duration
	loaded map[string]time.Time // guarded by mu
}

func (e *engine) adapters() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

func (e *engine) called() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.URL.Path {
	case "/health":
	case "/version":
		fmt.Fprint(w, `{"version":"0.32.0"}`)
	case "/v1/models":
		cards := []string{`{"id":"base","object":"model","root":"base","parent":null,"max_model_len":4096}`}
		for _, name := range e.list {
			if time.Since(e.loaded[name]) < e.late {
				continue
			}
			cards = append(cards, fmt.Sprintf(`{"id":%q,"object":"model","root":"/adapters/%s","parent":"base","max_model_len":null}`, name, name))
		}
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(cards, ","))
	case "/v1/load_lora_adapter", "/v1/unload_lora_adapter":
		var in struct {
			Name string `json:"lora_name"`
			Path string `json:"lora_path"`
		}
		body, _ := io.ReadAll(r.Body)
		e.calls = append(e.calls, strings.TrimPrefix(r.URL.Path, "/v1/")+" "+string(body))
		if e.change != nil {
			e.mu.Unlock()
			defer e.mu.Lock() // also when it panics
			e.change(w, r)
			return
		}
		_ = json.Unmarshal(body, &in)
		if has := slices.Contains(e.list, in.Name); strings.Contains(r.URL.Path, "unload") {
			e.list = slices.DeleteFunc(e.list, func(name string) bool { return name == in.Name })
		} else if has || in.Path != "/adapters/"+in.Name {
			w.WriteHeader(http.StatusBadRequest)
		} else {
			e.list = append(e.list, in.Name)
			e.loaded[in.Name] = time.Now()
		}
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// demand is a Record.
type demand struct {
	mu       sync.Mutex
	uses     map[string]float64 // guarded by mu
	inFlight int                // guarded by mu
	noted    []string           // guarded by mu
}

func (d *demand) set(adapter string, uses float64, inFlight int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uses, d.inFlight = map[string]float64{adapter: uses}, inFlight
}

func (d *demand) AdapterDemands() []adapters.Demand {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []adapters.Demand
	for name, uses := range d.uses {
		list = append(list, adapters.Demand{Adapter: name, Uses: uses})
	}
	return list
}

func (d *demand) AdapterInFlight(*replica.Replica, string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.inFlight
}

func (d *demand) AdapterLoaded(r *replica.Replica, adapter string, loaded bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noted = append(d.noted, fmt.Sprint(r.ID, " ", adapter, " ", loaded))
}

// of decides for the pool of one replica.
type of replica.ID

func (o of) Decides(id replica.ID) bool { return id == replica.ID(o) }

// start runs a rule over n engines of which the first one lists hot and cold.
func start(t *testing.T, n int, change func(*Config, *Params, []*engine)) ([]*engine, *demand) {
	t.Helper()
	rc, list := registry.DefaultConfig(), make([]*engine, n)
	rc.Probe.Interval, rc.Probe.ModelsInterval = 50*time.Millisecond, 50*time.Millisecond
	for i := range list {
		list[i] = &engine{loaded: map[string]time.Time{}}
		srv := httptest.NewServer(list[i])
		t.Cleanup(srv.Close)
		rc.Replicas = append(rc.Replicas, registry.Spec{ID: replica.ID(fmt.Sprintf("r%d", i)), URL: srv.URL})
	}
	list[0].list = []string{"hot", "cold"}
	c, record := DefaultConfig(), &demand{}
	c.Spread, c.Interval = true, 100*time.Millisecond
	known, client := registry.New(rc, registry.Params{}), upstream.New(upstream.DefaultConfig(), upstream.Params{})
	p := Params{Registry: known, Record: record, Client: client}
	if change != nil {
		change(&c, &p, list)
	}
	rule := New(c, p)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{known.Run, client.Run, rule.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	eventually(t, "all replicas are ready", func() bool {
		pool, ok := known.Snapshot().Pool("base")
		return ok && len(ready(pool.Replicas)) == n
	})
	return list, record
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("in vain: %s", what)
}

func TestAHotAdapterIsLoadedOnMoreReplicasAndUnloadedAgain(t *testing.T) {
	t.Parallel()
	engines, record := start(t, 3, func(c *Config, _ *Params, _ []*engine) { c.Idle = 300 * time.Millisecond })
	record.set("hot", 100, 0)
	on := func() (n int) {
		for _, e := range engines {
			if slices.Contains(e.adapters(), "hot") {
				n++
			}
		}
		return n
	}
	eventually(t, "hot is on all replicas", func() bool { return on() == 3 })
	record.set("hot", 0, 1)
	time.Sleep(time.Second)
	if on() != 3 {
		t.Error("it was unloaded with requests in flight")
	}
	record.set("hot", 0, 0)
	eventually(t, "hot is where it was at first", func() bool { return on() == 1 })
	time.Sleep(500 * time.Millisecond)
	if list := engines[0].adapters(); !slices.Equal(list, []string{"hot", "cold"}) {
		t.Errorf("the rule has unloaded what others had loaded: %v are left", list)
	}
	for i, e := range engines {
		if want := []int{0, 2, 2}[i]; e.called() != want {
			t.Errorf("engine %d was called %d times, want %d: %v", i, e.called(), want, e.calls)
		}
	}
	record.mu.Lock()
	defer record.mu.Unlock()
	if slices.Sort(record.noted); !slices.Equal(record.noted, []string{"r1 hot false", "r1 hot true", "r2 hot false", "r2 hot true"}) {
		t.Errorf("the record has %v", record.noted)
	}
}

// A registry that sees an adapter late does not make the rule forget that it has loaded it.
func TestAnAdapterThatIsListedLateIsUnloaded(t *testing.T) {
	t.Parallel()
	engines, record := start(t, 2, func(c *Config, _ *Params, list []*engine) { c.Idle, list[1].late = 300*time.Millisecond, 3*time.Second })
	record.set("hot", 100, 0)
	has := func() bool { return slices.Contains(engines[1].adapters(), "hot") }
	eventually(t, "hot is on both replicas", has)
	record.set("hot", 0, 0)
	eventually(t, "hot is where it was at first", func() bool { return !has() })
}

// A call that fails, hangs or is half is not repeated at once, and holds up no other replica.
func TestCallsThatFailRest(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"hangs":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("x"))
			panic(http.ErrAbortHandler)
		},
		"too large": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) },
		"gone":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines, record := start(t, 3, func(_ *Config, _ *Params, list []*engine) { list[1].change = change })
			record.set("hot", 100, 0)
			eventually(t, "hot is on the other replica", func() bool { return slices.Contains(engines[2].adapters(), "hot") })
			eventually(t, "the first call", func() bool { return engines[1].called() > 0 })
			time.Sleep(500 * time.Millisecond)
			if n := engines[1].called(); n > 2 { // one per kind of connection: a request on a closed one is sent again
				t.Errorf("%d calls in half a second", n)
			}
		})
	}
}

func TestTheRuleKeepsToItsBounds(t *testing.T) {
	t.Parallel()
	full := []string{"a", "b", "c"}
	engines, record := start(t, 3, func(c *Config, p *Params, list []*engine) {
		c.MaxPerReplica, list[1].list = 3, full
		p.Fleet = of("r0")
	})
	record.set("hot", 1000, 0)
	eventually(t, "hot is on the replica with room", func() bool { return slices.Contains(engines[2].adapters(), "hot") })
	time.Sleep(300 * time.Millisecond)
	if list := engines[1].adapters(); !slices.Equal(list, full) {
		t.Errorf("a full replica has %v", list)
	}
	if engines[0].called() != 0 {
		t.Error("a replica that has the adapter was called")
	}
	others, record := start(t, 2, func(_ *Config, p *Params, _ []*engine) { p.Fleet = of("another") })
	off, record2 := start(t, 2, func(c *Config, _ *Params, _ []*engine) { c.Spread = false })
	record.set("hot", 1000, 0)
	record2.set("hot", 1000, 0)
	time.Sleep(500 * time.Millisecond)
	if others[1].called() != 0 || off[1].called() != 0 {
		t.Errorf("a router that does not decide made %d calls, a rule that is off %d", others[1].called(), off[1].called())
	}
}
