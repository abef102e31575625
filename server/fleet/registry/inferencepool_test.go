package registry_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const (
	poolsPath = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
	podsPath  = "/api/v1/namespaces/models/pods"
)

func (a *apiServer) config(change func(*registry.InferencePoolConfig)) registry.Config {
	config := fast()
	config.Probe.Interval, config.Probe.MaxInterval = time.Hour, time.Hour
	pool := registry.InferencePoolConfig{Name: "vllm", APIServer: a.URL, Credentials: a.dir, Template: registry.Spec{Events: registry.EventsSpec{Endpoint: "tcp://{host}:5557", Replay: "tcp://{host}:5657"}}}
	if change != nil {
		change(&pool)
	}
	config.InferencePools = []registry.InferencePoolConfig{pool}
	return config
}

// putPool makes the pool; without labels it is removed.
func (a *apiServer) putPool(labels map[string]string, ports ...int) {
	if labels == nil {
		a.put(poolsPath, "vllm", nil)
		return
	}
	list := []any{}
	for _, port := range ports {
		list = append(list, apiObject{"number": port})
	}
	a.put(poolsPath, "vllm", apiObject{"spec": apiObject{"selector": apiObject{"matchLabels": labels}, "targetPorts": list}}) // and no endpointPickerRef
}

// enginePod is a pod of the pool's namespace.
type enginePod struct {
	labels, annotations map[string]string
	address             string
	ready, leaving      bool
}

func (a *apiServer) putPod(name string, p *enginePod) {
	if p == nil {
		a.put(podsPath, name, nil)
		return
	}
	meta := apiObject{"labels": maps.Clone(p.labels), "annotations": maps.Clone(p.annotations)}
	if p.leaving {
		meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	ready := map[bool]string{true: "True", false: "False"}[p.ready]
	a.put(podsPath, name, apiObject{"metadata": meta, "spec": apiObject{"nodeName": "n1"}, "status": apiObject{
		"podIP": p.address, "conditions": []any{apiObject{"type": "Initialized", "status": "True"}, apiObject{"type": "Ready", "status": ready}},
	}})
}

var engineLabels = map[string]string{"app": "vllm"}

func TestInferencePoolsAreFollowed(t *testing.T) {
	a := newAPIServer(t)
	a.putPool(engineLabels, 8000)
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		a.putPod(name, &enginePod{labels: engineLabels, address: fmt.Sprint("10.0.0.", i+1), ready: name != "e"})
	}
	a.putPod("other", &enginePod{labels: map[string]string{"app": "redis"}, address: "10.0.0.9", ready: true})
	r := start(t, a.config(nil), registry.Params{Client: unplugged()})
	expect := func(what, want string) {
		t.Helper()
		eventually(t, what+": "+want, func() bool { return urls(r) == want })
	}
	expect("the ready pods of the selector, over several pages", "a=10.0.0.1:8000, b=10.0.0.2:8000, c=10.0.0.3:8000, d=10.0.0.4:8000")
	rep, _ := r.Snapshot().Replica("a")
	if rep.Labels["node"] != "n1" || rep.Events[0].Endpoint != "tcp://10.0.0.1:5557" || r.Snapshot().Details("a").Source != "inferencepool:models/vllm" {
		t.Errorf("replica of a pod: %+v of %s", rep, r.Snapshot().Details("a").Source)
	}
	a.putPod("e", &enginePod{labels: engineLabels, address: "10.0.0.5", ready: true})
	a.putPod("a", &enginePod{labels: engineLabels, address: "10.0.0.1", ready: false})
	a.putPod("b", &enginePod{labels: engineLabels, address: "10.0.0.2", ready: true, leaving: true})
	a.putPod("d", nil)
	expect("one is ready, one is not any more, one ends, one is gone", "a=10.0.0.1:8000 draining, b=10.0.0.2:8000 draining, c=10.0.0.3:8000, e=10.0.0.5:8000")
	if r.Snapshot().Details("a").Leaving || !r.Snapshot().Details("b").Leaving {
		t.Error("requests move from a pod that ends, and from no other one")
	}
	a.putPod("a", &enginePod{labels: engineLabels, address: "10.0.0.1", ready: true})
	a.putPod("c", &enginePod{labels: map[string]string{"app": "debug"}, address: "10.0.0.3", ready: true})
	expect("one is ready again, one has other labels", "a=10.0.0.1:8000, b=10.0.0.2:8000 draining, e=10.0.0.5:8000")
	a.putPod("a", &enginePod{labels: engineLabels, address: "10.0.0.7", ready: false})
	a.putPod("b", nil)
	expect("a pod of the same name at another address is another one", "e=10.0.0.5:8000")

	// Each port of a pod is an engine; its events are at ports that follow each other.
	a.putPod("a", &enginePod{labels: engineLabels, address: "10.0.0.7", ready: true, annotations: map[string]string{"llm-d.ai/active-ports": "8001"}})
	a.putPool(engineLabels, 8000, 8001)
	expect("two ports", "a-8001=10.0.0.7:8001, e-8000=10.0.0.5:8000, e-8001=10.0.0.5:8001")
	rep, _ = r.Snapshot().Replica("e-8001")
	if rep.Events[0].Endpoint != "tcp://10.0.0.5:5558" || rep.Events[0].Replay != "tcp://10.0.0.5:5658" {
		t.Errorf("the events of the second port: %+v", rep.Events)
	}
	a.putPool(map[string]string{"app": "redis"}, 8000)
	expect("another selector", "other=10.0.0.9:8000")
	a.putPool(nil)
	expect("no pool", "")
	a.putPool(engineLabels, 8000)
	expect("the pool again, with a port at which one pod has no engine", "e=10.0.0.5:8000")
}

func TestPodsOfAPoolSayWhatIsInThem(t *testing.T) {
	a := newAPIServer(t)
	a.putPool(engineLabels, 8000)
	labels := map[string]string{"app": "vllm", "llm-d.ai/engine-type": "sglang", "llm-d.ai/role": "decode", "topology.kubernetes.io/zone": "z1", "kvpilot.port": "9999"}
	a.putPod("a", &enginePod{labels: labels, address: "10.0.0.1", ready: true})
	r := start(t, a.config(nil), registry.Params{Client: unplugged()})
	eventually(t, "a", func() bool { return urls(r) == "a=10.0.0.1:8000" })
	rep, _ := r.Snapshot().Replica("a")
	if rep.Labels[replica.LabelEngine] != "sglang" || rep.Labels[replica.LabelRole] != "decode" || rep.Labels["zone"] != "z1" || len(rep.Events) != 0 {
		t.Errorf("%+v", rep)
	}
	r = start(t, a.config(func(c *registry.InferencePoolConfig) { c.PodLabels = "ignore" }), registry.Params{Client: unplugged()})
	eventually(t, "a", func() bool { return urls(r) == "a=10.0.0.1:8000" })
	if rep, _ := r.Snapshot().Replica("a"); rep.Labels[replica.LabelEngine] != "" || len(rep.Events) != 1 {
		t.Errorf("labels are ignored: %+v", rep)
	}
}

// What the API server says is checked and bounded, as for Services.
func TestInferencePoolsAreChecked(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.putPool(engineLabels, 8000, 70000)
	for i, address := range []string{"169.254.169.254", "not-an-ip", "127.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		a.putPod(fmt.Sprint("p", i), &enginePod{labels: engineLabels, address: address, ready: true})
	}
	var log logged
	config := a.config(func(c *registry.InferencePoolConfig) { c.MaxEndpoints = 3 })
	r := start(t, config, registry.Params{Client: unplugged(), Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))})
	// Loopback passes: the API server of the test is there, too.
	eventually(t, "three replicas", func() bool { return urls(r) == "p2-8000=127.0.0.2:8000, p3-8000=10.0.0.1:8000, p4-8000=10.0.0.2:8000" })
	if !strings.Contains(log.String(), "bad_addresses=4 above_limit=5") || !strings.Contains(log.String(), "target port 70000 is none") {
		t.Errorf("the log: %s", log.String())
	}
	a.putPod("a-new-one", &enginePod{labels: engineLabels, address: "10.0.0.9", ready: true})                         // the first in order
	eventually(t, "the new pod is left out", func() bool { return strings.Contains(log.String(), "above_limit=11") }) // behind those that are in use, also those with bad addresses
	if got := urls(r); !strings.HasPrefix(got, "p2-8000") {
		t.Errorf("a new pod replaced a replica: %s", got)
	}
	examined := r.ExamineSources(t.Context())
	if len(examined) != 2 || examined[0].Setting != "inference_pools[0]" || examined[0].Replicas != 16 || examined[0].Err != nil || examined[1].What != "pods" {
		t.Errorf("examined: %+v", examined)
	}
	a.putPool(nil)
	if examined = r.ExamineSources(t.Context()); len(examined) != 1 || examined[0].Err == nil || !strings.Contains(examined[0].Err.Error(), "no InferencePool vllm") {
		t.Errorf("examined without a pool: %+v", examined)
	}
}

func TestInferencePoolSettingsAreChecked(t *testing.T) {
	for want, conf := range map[string]registry.InferencePoolConfig{
		"inference_pools[0].name": {}, "template": {Name: "s", Template: registry.Spec{ID: "x"}}, "api_server": {Name: "s", APIServer: "host"}, "pod_labels": {Name: "s", PodLabels: "some"},
		"inference_pools[0].template.pool": {Name: "s", Template: registry.Spec{Pool: "none"}},
	} {
		c := registry.DefaultConfig()
		c.InferencePools = []registry.InferencePoolConfig{conf}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want an error about %q", err, want)
		}
	}
}

// poolModel is what the pool's replicas should be.
type poolModel struct {
	selector map[string]string
	ports    []int
	pods     map[string]*enginePod
	shown    map[string]string // the addresses of pods that are replicas
}

// expect is the list of replicas, as urls writes it.
func (m *poolModel) expect() string {
	shown := map[string]string{}
	var list []string
	for name, p := range m.pods {
		if m.selector == nil || p.labels["app"] != m.selector["app"] {
			continue
		}
		if m.shown[name] != p.address && (!p.ready || p.leaving) {
			continue
		}
		shown[name] = p.address
		for _, port := range m.ports {
			id := name
			if len(m.ports) > 1 {
				id = fmt.Sprint(name, "-", port)
			}
			text := fmt.Sprintf("%s=%s:%d", id, p.address, port)
			if !p.ready || p.leaving {
				text += " draining"
			}
			list = append(list, text)
		}
	}
	m.shown = shown
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// change makes one random change.
func (m *poolModel) change(a *apiServer, random *rand.Rand, serial int) {
	name := fmt.Sprintf("p%02d", random.IntN(24))
	p := m.pods[name]
	switch n := random.IntN(100); {
	case n < 3:
		m.ports = [][]int{{8000}, {8000, 8001}, {8000, 8001, 8002}}[random.IntN(3)]
		a.putPool(m.selector, m.ports...)
	case n < 6:
		m.selector = []map[string]string{{"app": "vllm"}, {"app": "vllm"}, {"app": "canary"}}[random.IntN(3)]
		a.putPool(m.selector, m.ports...)
	case p == nil:
		m.pods[name] = &enginePod{labels: map[string]string{"app": []string{"vllm", "vllm", "vllm", "canary"}[random.IntN(4)]}, address: fmt.Sprintf("10.0.%d.%d", serial/250, serial%250+1), ready: random.IntN(2) == 0}
		a.putPod(name, m.pods[name])
	case n < 30 || p.leaving && n < 70:
		delete(m.pods, name)
		a.putPod(name, nil)
	case n < 45:
		p.leaving = true
		a.putPod(name, p)
	case n < 55:
		p.labels = map[string]string{"app": []string{"vllm", "canary"}[random.IntN(2)]}
		a.putPod(name, p)
	default:
		p.ready = !p.ready
		a.putPod(name, p)
	}
}

// After each of a thousand random changes of pods and pool, the replicas are right within a second: also where watches break in the middle of a
// line, the server forgets versions, and a list expires between two pages.
func TestAThousandChangesAreFollowed(t *testing.T) {
	a := newAPIServer(t)
	random := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	m := &poolModel{selector: engineLabels, ports: []int{8000}, pods: map[string]*enginePod{}}
	a.putPool(m.selector, m.ports...)
	r := start(t, a.config(nil), registry.Params{Client: unplugged()})
	var slowest time.Duration
	broken := 0
	for i := range 1000 {
		if i%50 == 25 {
			broken++
			a.breakWatches(random.IntN(2) == 0)
		}
		m.change(a, random, i)
		want, began := m.expect(), time.Now()
		for urls(r) != want {
			if time.Since(began) > time.Second {
				t.Fatalf("after change %d the replicas are\n%s, want\n%s", i, urls(r), want)
			}
			time.Sleep(200 * time.Microsecond)
		}
		slowest = max(slowest, time.Since(began))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t.Logf("slowest %s; watches broke %d times, %d lists, %d watches", slowest, broken, a.lists, a.watches)
	if a.lists < broken/2 {
		t.Errorf("%d lists after %d broken watches", a.lists, broken)
	}
}
