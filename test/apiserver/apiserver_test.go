package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nowhere answers no request: the pods of the tests have addresses, and no engines.
type nowhere struct{}

// RoundTrip implements http.RoundTripper.
func (nowhere) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no network") }

var engine = object{"app": "vllm"}

// pool is an InferencePool with the pods that it selects, as they should be.
type pool struct {
	c     *cluster
	dice  *rand.Rand
	pods  map[string]*pod
	ports []int
	made  int
}

type pod struct {
	address  string
	selected bool
	// used is set once the pod was selected and ready: it stays a replica until it is gone or selected no longer.
	used, ready bool
}

func newPool(c *cluster) *pool {
	p := &pool{c: c, dice: rand.New(rand.NewPCG(7, 11)), pods: map[string]*pod{}, ports: []int{8000}}
	c.put(pools, object{
		"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": object{"name": "vllm"},
		"spec": object{"selector": object{"matchLabels": engine}, "targetPorts": p.portList()},
	})
	return p
}

func (p *pool) portList() (list []any) {
	for _, port := range p.ports {
		list = append(list, object{"number": port})
	}
	return list
}

// add makes a pod, ready or not.
func (p *pool) add(ready bool) {
	p.made++
	name, one := fmt.Sprint("pod-", p.made), &pod{address: fmt.Sprintf("10.%d.%d.%d", 1+p.made/62500, p.made/250%250, 1+p.made%250), selected: true}
	p.c.put(pods, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "labels": engine},
		"spec": object{"containers": []any{object{"name": "vllm", "image": "vllm"}}, "nodeName": "n1", "automountServiceAccountToken": false},
	})
	p.pods[name] = one
	p.status(name, ready)
}

// status is what a kubelet reports of a pod.
func (p *pool) status(name string, ready bool) {
	one := p.pods[name]
	p.c.patch(pods+"/"+name+"/status", object{"status": object{
		"phase": "Running", "podIP": one.address, "podIPs": []any{object{"ip": one.address}},
		"conditions": []any{object{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}},
	}})
	one.ready = ready
	one.used = one.used || ready && one.selected
}

func (p *pool) remove(name string) {
	p.c.send(http.MethodDelete, pods+"/"+name+"?gracePeriodSeconds=0", "", nil)
	delete(p.pods, name)
}

// label has the pool select a pod, or not.
func (p *pool) label(name string, selected bool) {
	value := "other"
	if selected {
		value = "vllm"
	}
	p.c.patch(pods+"/"+name, object{"metadata": object{"labels": object{"app": value}}})
	one := p.pods[name]
	one.selected, one.used = selected, selected && (one.used || one.ready)
}

// open changes the pool's ports.
func (p *pool) open(ports ...int) {
	p.ports = ports
	p.c.patch(pools+"/vllm", object{"spec": object{"targetPorts": p.portList()}})
}

// unseen has it that what happened since then was not seen: names are the pods that were used then.
func (p *pool) unseen(then []string) {
	for name, one := range p.pods {
		one.used = one.selected && (one.ready || slices.Contains(then, name))
	}
}

// usedNow are the pods that are used.
func (p *pool) usedNow() (list []string) {
	for name, one := range p.pods {
		if one.used {
			list = append(list, name)
		}
	}
	return list
}

// change does one thing at random.
func (p *pool) change() {
	names := p.names()
	switch at := p.dice.IntN(100); {
	case len(names) < 3 || at < 25 && len(names) < 40:
		p.add(p.dice.IntN(4) > 0)
	case at < 55:
		name := names[p.dice.IntN(len(names))]
		p.status(name, !p.pods[name].ready)
	case at < 75:
		p.remove(names[p.dice.IntN(len(names))])
	case at < 92:
		name := names[p.dice.IntN(len(names))]
		p.label(name, !p.pods[name].selected)
	default:
		p.open([][]int{{8000}, {8000, 8001}, {9000}, {8000, 8001, 8002}}[p.dice.IntN(4)]...)
	}
}

func (p *pool) names() []string {
	var list []string
	for name := range p.pods {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// want is the list of endpoints as it should be.
func (p *pool) want() string {
	var list []string
	for _, one := range p.pods {
		if !one.used {
			continue
		}
		for _, port := range p.ports {
			list = append(list, fmt.Sprintf("http://%s:%d", one.address, port))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// endpoints is the list of endpoints as the registry has it.
func endpoints(view *registry.Snapshot) string {
	var list []string
	for _, one := range view.Replicas {
		list = append(list, one.URL)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// settle waits until the registry has the endpoints, and returns how long that took.
func (p *pool) settle(r *registry.Registry, most time.Duration) (time.Duration, bool) {
	want, began := p.want(), time.Now()
	for {
		view := r.Snapshot()
		if endpoints(view) == want {
			return time.Since(began), true
		}
		select {
		case <-view.Superseded():
		case <-time.After(most - time.Since(began)):
			return time.Since(began), endpoints(r.Snapshot()) == want
		}
	}
}

func settings(c *cluster, url string) registry.Config {
	config := registry.DefaultConfig()
	config.Probe.Interval, config.Probe.MaxInterval = time.Hour, time.Hour
	config.InferencePools = []registry.InferencePoolConfig{{Name: "vllm", APIServer: url, Credentials: c.dir}}
	return config
}

// follow runs a registry with the pool as its source.
func follow(t *testing.T, config registry.Config) *registry.Registry {
	t.Helper()
	r := registry.New(config, registry.Params{Client: &http.Client{Transport: nowhere{}}})
	run(t, r.Run)
	return r
}

// run runs something until the test ends.
func run(t *testing.T, do func(context.Context) error) {
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// changes is the number of random changes.
const changes = 1000

func TestEndpointsAreRightWithinASecondOfEachChange(t *testing.T) {
	c := startCluster(t)
	p := newPool(c)
	for range 5 {
		p.add(true)
	}
	r := follow(t, settings(c, c.url))
	if _, ok := p.settle(r, 30*time.Second); !ok {
		t.Fatalf("at first the endpoints are %s, want %s", endpoints(r.Snapshot()), p.want())
	}
	var took []time.Duration
	for n := range changes {
		if n%250 == 125 {
			c.rotate()
		}
		p.change()
		d, ok := p.settle(r, time.Second)
		if !ok {
			t.Fatalf("%v after change %d the endpoints are\n%s\nwant\n%s", d, n, endpoints(r.Snapshot()), p.want())
		}
		took = append(took, d)
	}
	slices.Sort(took)
	t.Logf("endpoints are right %v after a change (median), %v (99 of 100), %v (at most)", took[changes/2], took[changes*99/100], took[changes-1])
	if n := c.asked("list", "pods", http.StatusUnauthorized) + c.asked("watch", "pods", http.StatusUnauthorized); n > 8 {
		t.Errorf("void tokens were used %d times in 4 rotations", n)
	}
}

func TestAServerThatHasForgottenTheVersionIsListedAgain(t *testing.T) {
	c := startCluster(t, "--watch-cache=false", "--etcd-compaction-interval=1s")
	p := newPool(c)
	for range 5 {
		p.add(true)
	}
	w, url := newWire(t, c)
	r := follow(t, settings(c, url))
	if _, ok := p.settle(r, 30*time.Second); !ok {
		t.Fatalf("at first the endpoints are %s, want %s", endpoints(r.Snapshot()), p.want())
	}
	lists := c.asked("list", "pods", http.StatusOK)
	for round := range 3 {
		before, used := endpoints(r.Snapshot()), p.usedNow()
		w.set(true)
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			p.change() // the versions of before are compacted away
		}
		p.unseen(used)
		c.rotate()
		if now := endpoints(r.Snapshot()); now != before {
			t.Errorf("round %d: while the server is away the endpoints change from %s to %s", round, before, now)
		}
		w.set(false)
		if d, ok := p.settle(r, 40*time.Second); !ok {
			t.Fatalf("round %d: %v after the server is back the endpoints are\n%s\nwant\n%s", round, d, endpoints(r.Snapshot()), p.want())
		}
		for range 20 {
			p.change()
			if d, ok := p.settle(r, time.Second); !ok {
				t.Fatalf("round %d: %v after a change the endpoints are\n%s\nwant\n%s", round, d, endpoints(r.Snapshot()), p.want())
			}
		}
	}
	if n := c.asked("list", "pods", http.StatusOK) - lists; n < 3 {
		t.Errorf("the pods were listed %d times again, want once a round at least: nothing was forgotten", n)
	}
}

func TestObjectivesAndRewritesAreFollowed(t *testing.T) {
	c := startCluster(t)
	newPool(c)
	config := settings(c, c.url)
	o, w := registry.NewObjectives(config, scope.Scope{}), registry.NewRewrites(config, scope.Scope{})
	run(t, o.Run)
	run(t, w.Run)
	soon := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Second); !done(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a second: %s", what)
			}
		}
	}
	c.put(objectives, object{"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective", "metadata": object{"name": "first"}, "spec": object{"priority": 0, "poolRef": object{"name": "vllm"}}})
	c.eventually("the objective is there", func() bool { _, ok := o.Priority("first"); return ok })
	c.put(rewrites, object{"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceModelRewrite", "metadata": object{"name": "rule"}, "spec": object{"poolRef": object{"name": "vllm"}, "rules": []any{}}})
	for n := range 100 {
		c.patch(objectives+"/first", object{"spec": object{"priority": n + 1}})
		soon(fmt.Sprint("priority ", n+1), func() bool { got, ok := o.Priority("first"); return ok && got == n+1 })
		c.patch(rewrites+"/rule", object{"spec": object{"rules": []any{object{
			"matches": []any{object{"model": object{"type": "Exact", "value": "m"}}},
			"targets": []any{object{"modelRewrite": "stable", "weight": 100 - n}, object{"modelRewrite": "canary", "weight": n}},
		}}}})
		soon(fmt.Sprint("weight ", n), func() bool {
			to := w.Targets("m")
			return len(to) == 2 && to[0] == registry.Target{Model: "stable", Weight: 100 - n} && to[1] == registry.Target{Model: "canary", Weight: n}
		})
	}
	c.send(http.MethodDelete, objectives+"/first", "", nil)
	c.send(http.MethodDelete, rewrites+"/rule", "", nil)
	soon("both are gone", func() bool { _, ok := o.Priority("first"); return !ok && w.Targets("m") == nil })
}
