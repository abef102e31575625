package registry_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// kube is an API server that knows EndpointSlices: pages, watches, bookmarks, forgotten versions.
type kube struct {
	*httptest.Server
	dir string

	mu       sync.Mutex
	token    string
	version  int
	slices   map[string]map[string]any
	watchers []chan string // a line to send; closed to end the watch
	refuse   int           // status for the next requests, 0 for none
	lists    int
	seen     []string // resource versions that watches began with
	problems []string
}

func newKube(t *testing.T) *kube {
	t.Helper()
	k := &kube{dir: t.TempDir(), token: "first", version: 10, slices: map[string]map[string]any{}}
	k.Server = httptest.NewTLSServer(http.HandlerFunc(k.serve))
	t.Cleanup(func() {
		k.endWatches()
		k.Close()
		for _, p := range k.problems {
			t.Error(p)
		}
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.Certificate().Raw})
	write(t, filepath.Join(k.dir, "ca.crt"), string(ca))
	write(t, filepath.Join(k.dir, "token"), "first\n")
	write(t, filepath.Join(k.dir, "namespace"), "models")
	return k
}

func (k *kube) config() registry.Config {
	config := fast()
	config.Kubernetes = []registry.KubernetesConfig{{
		Service: "vllm", Port: "http", APIServer: k.URL, Credentials: k.dir,
		Template: registry.Spec{Events: registry.EventsSpec{Endpoint: "tcp://{host}:5557"}, Labels: map[string]string{"pool": "a"}},
	}}
	return config
}

func (k *kube) serve(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	q := r.URL.Query()
	if r.URL.Path != "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices" || q.Get("labelSelector") != "kubernetes.io/service-name=vllm" {
		k.problems = append(k.problems, "asked for "+r.URL.String())
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+k.token:
		k.mu.Unlock()
		http.Error(w, `{"message":"Unauthorized"}`, http.StatusUnauthorized)
	case k.refuse != 0:
		status := k.refuse
		k.mu.Unlock()
		http.Error(w, "{}", status)
	case q.Get("watch") != "":
		k.seen = append(k.seen, q.Get("resourceVersion"))
		lines := make(chan string, 100)
		k.watchers = append(k.watchers, lines)
		k.catchUp(lines, q.Get("resourceVersion"))
		k.mu.Unlock()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // a client that left is noticed below
		for {
			select {
			case line, open := <-lines:
				if !open {
					return
				}
				fmt.Fprintln(w, line)
				_ = http.NewResponseController(w).Flush() // as above
			case <-r.Context().Done():
				return
			}
		}
	default:
		page := k.list(q.Get("continue"))
		k.mu.Unlock()
		_ = json.NewEncoder(w).Encode(page) // a client that left is no problem
	}
}

// list gives one slice per page, so that continuing is tested.
func (k *kube) list(from string) map[string]any {
	if from == "" {
		k.lists++
	}
	names := make([]string, 0, len(k.slices))
	for name := range k.slices {
		names = append(names, name)
	}
	slices.Sort(names)
	at := 0
	if from != "" {
		at, _ = strconv.Atoi(from) // our own number
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(k.version)}
	items := []any{}
	if at < len(names) {
		items = append(items, k.slices[names[at]])
		if at+1 < len(names) {
			meta["continue"] = strconv.Itoa(at + 1)
		}
	}
	return map[string]any{"metadata": meta, "items": items}
}

// catchUp sends what changed since a version. k.mu is held.
func (k *kube) catchUp(lines chan<- string, version string) {
	since, _ := strconv.Atoi(version) // our own number
	for _, slice := range k.slices {
		own, _ := strconv.Atoi(slice["metadata"].(map[string]any)["resourceVersion"].(string)) // our own number
		if own > since {
			line, _ := json.Marshal(map[string]any{"type": "MODIFIED", "object": slice}) // plain values
			lines <- string(line)
		}
	}
}

type pod struct {
	name, address string
	terminating   bool
}

// put makes or changes a slice and tells the watchers; quiet leaves them out.
func (k *kube) put(name, kind string, quiet bool, pods ...pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	endpoints := []any{}
	for _, p := range pods {
		endpoints = append(endpoints, map[string]any{
			"addresses": []string{p.address}, "conditions": map[string]any{"ready": !p.terminating, "terminating": p.terminating},
			"targetRef": map[string]any{"kind": "Pod", "name": p.name}, "zone": "z1", "nodeName": "n1",
		})
	}
	slice := map[string]any{
		"metadata":    map[string]any{"name": name, "resourceVersion": strconv.Itoa(k.version)},
		"addressType": kind, "endpoints": endpoints,
		"ports": []any{map[string]any{"name": "http", "port": 8000}, map[string]any{"name": "metrics", "port": 9000}},
	}
	event := "MODIFIED"
	if k.slices[name] == nil {
		event = "ADDED"
	}
	k.slices[name] = slice
	if !quiet {
		k.tell(event, slice)
	}
}

func (k *kube) drop(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	slice := k.slices[name]
	delete(k.slices, name)
	slice["metadata"] = map[string]any{"name": name, "resourceVersion": strconv.Itoa(k.version)}
	k.tell("DELETED", slice)
}

// tell sends an event to all watchers. k.mu is held.
func (k *kube) tell(kind string, object any) {
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		k.problems = append(k.problems, err.Error())
	}
	for _, w := range k.watchers {
		w <- string(line)
	}
}

func (k *kube) endWatches() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.watchers {
		close(w)
	}
	k.watchers = nil
}

func (k *kube) with(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}

func urls(r *registry.Registry) string {
	var list []string
	for _, rep := range r.Snapshot().Replicas {
		text := string(rep.ID) + "=" + strings.TrimPrefix(rep.URL, "http://")
		if rep.State == replica.StateDraining {
			text += " draining"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

func TestKubernetesIsFollowed(t *testing.T) {
	k := newKube(t)
	k.put("vllm-1", "IPv4", true, pod{name: "a", address: "10.0.0.1"}, pod{name: "b", address: "10.0.0.2"})
	k.put("vllm-2", "IPv4", true, pod{name: "c", address: "10.0.0.3"})
	k.put("vllm-3", "IPv6", true, pod{name: "a", address: "fd00::1"}, pod{name: "d", address: "fd00::4"})
	r := start(t, k.config(), registry.Params{})
	expect := func(what, want string) {
		t.Helper()
		eventually(t, what+": "+want, func() bool { return urls(r) == want })
	}
	expect("all pages, each pod once", "a=10.0.0.1:8000, b=10.0.0.2:8000, c=10.0.0.3:8000, d=[fd00::4]:8000")
	rep, _ := r.Snapshot().Replica("a")
	if rep.Labels["zone"] != "z1" || rep.Labels["node"] != "n1" || rep.Labels["pool"] != "a" || rep.Events[0].Endpoint != "tcp://10.0.0.1:5557" {
		t.Errorf("replica of a pod: %+v", rep)
	}
	if d := r.Snapshot().Details("a"); d.Source != "kubernetes:models/vllm" {
		t.Errorf("source %q", d.Source)
	}
	watching := func(n int) func() bool {
		return func() (ok bool) { k.with(func() { ok = len(k.watchers) == n }); return ok }
	}
	eventually(t, "a watch", watching(1))
	k.put("vllm-2", "IPv4", false, pod{name: "c", address: "10.0.0.3", terminating: true}, pod{name: "e", address: "10.0.0.5"})
	expect("a pod terminates, another comes", "a=10.0.0.1:8000, b=10.0.0.2:8000, c=10.0.0.3:8000 draining, d=[fd00::4]:8000, e=10.0.0.5:8000")
	k.drop("vllm-3")
	k.put("vllm-2", "IPv4", false, pod{name: "e", address: "10.0.0.6"})
	expect("a slice goes, a pod has a new address", "a=10.0.0.1:8000, b=10.0.0.2:8000, e=10.0.0.6:8000")

	// The server ends the watch, as it does every few minutes: the next one continues from the
	// bookmark, with the token of that time.
	k.with(func() {
		k.version = 70
		k.tell("BOOKMARK", map[string]any{"kind": "EndpointSlice", "metadata": map[string]any{"resourceVersion": "70"}})
		k.token = "second"
	})
	write(t, filepath.Join(k.dir, "token"), "second")
	k.endWatches()
	eventually(t, "the next watch", watching(1))
	k.with(func() {
		if last := k.seen[len(k.seen)-1]; last != "70" || k.lists != 1 {
			t.Errorf("the next watch began at %s after %d lists, want at 70 after 1", last, k.lists)
		}
	})
	k.put("vllm-1", "IPv4", false, pod{name: "a", address: "10.0.0.1"})
	expect("the next watch works", "a=10.0.0.1:8000, e=10.0.0.6:8000")

	// A forgotten version makes it list again, and what went unseen is seen.
	k.put("vllm-2", "IPv4", true, pod{name: "f", address: "10.0.0.7"})
	k.with(func() {
		k.tell("ERROR", map[string]any{"kind": "Status", "code": 410, "message": "too old resource version"})
	})
	expect("listed again", "a=10.0.0.1:8000, f=10.0.0.7:8000")
}

func TestKubernetesOutagesLeaveTheReplicas(t *testing.T) {
	k := newKube(t)
	k.put("vllm-1", "IPv4", true, pod{name: "a", address: "10.0.0.1"})
	k.with(func() { k.refuse = 503 })
	r := start(t, k.config(), registry.Params{})
	<-time.After(100 * time.Millisecond)
	k.with(func() { k.refuse = 0 }) // the server was not there yet when we began
	eventually(t, "a", func() bool { return urls(r) == "a=10.0.0.1:8000" })
	k.put("vllm-1", "IPv4", true, pod{name: "b", address: "10.0.0.2"})
	k.with(func() { k.refuse = 500 })
	k.endWatches()
	<-time.After(200 * time.Millisecond)
	if got := urls(r); got != "a=10.0.0.1:8000" {
		t.Errorf("during an outage: %s, want a", got)
	}
	k.with(func() { k.refuse = 0 })
	eventually(t, "b after the outage", func() bool { return urls(r) == "b=10.0.0.2:8000" })
}

func TestKubernetesConfigIsChecked(t *testing.T) {
	for want, conf := range map[string]registry.KubernetesConfig{
		"service": {}, "template": {Service: "s", Template: registry.Spec{ID: "x"}}, "api_server": {Service: "s", APIServer: "host"},
	} {
		c := registry.DefaultConfig()
		c.Kubernetes = []registry.KubernetesConfig{conf}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want an error about %q", err, want)
		}
	}
	c := registry.DefaultConfig()
	c.Kubernetes = []registry.KubernetesConfig{{Service: "s", Credentials: t.TempDir()}}
	r := registry.New(c, registry.Params{})
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("Run outside a cluster: %v, want an error about the namespace", err)
	}
}
