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
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// kube is an API server that knows EndpointSlices and Pods: pages, watches, bookmarks, forgotten versions.
type kube struct {
	*httptest.Server
	dir string

	mu       sync.Mutex
	token    string
	version  int
	kubeList          // EndpointSlices
	pods     kubeList // Pods
	problems []string
}

// kubeList is one list of the server.
type kubeList struct {
	objects  map[string]map[string]any
	watchers []chan string // a line to send; closed to end the watch
	refuse   int           // status for the next requests, 0 for none
	lists    int
	seen     []string // resource versions that watches began with
}

func newKube(t *testing.T) *kube {
	t.Helper()
	k := &kube{dir: t.TempDir(), token: "first", version: 10}
	k.objects, k.pods.objects = map[string]map[string]any{}, map[string]map[string]any{}
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
		Service: "vllm", Port: "http", APIServer: k.URL, Credentials: k.dir, PodLabels: "ignore",
		Template: registry.Spec{Events: registry.EventsSpec{Endpoint: "tcp://{host}:5557"}, Labels: map[string]string{"pool": "a"}},
	}}
	return config
}

func (k *kube) serve(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	q := r.URL.Query()
	l := &k.kubeList
	if r.URL.Path == "/api/v1/namespaces/models/pods" {
		l = &k.pods
	} else if r.URL.Path != "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices" || q.Get("labelSelector") != "kubernetes.io/service-name=vllm" {
		k.problems = append(k.problems, "asked for "+r.URL.String())
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+k.token:
		k.mu.Unlock()
		http.Error(w, `{"message":"Unauthorized"}`, http.StatusUnauthorized)
	case l.refuse != 0:
		status := l.refuse
		k.mu.Unlock()
		http.Error(w, "{}", status)
	case q.Get("watch") != "":
		l.seen = append(l.seen, q.Get("resourceVersion"))
		lines := make(chan string, 100)
		l.watchers = append(l.watchers, lines)
		l.catchUp(lines, q.Get("resourceVersion"))
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
		page := l.list(q.Get("continue"), k.version)
		k.mu.Unlock()
		_ = json.NewEncoder(w).Encode(page) // a client that left is no problem
	}
}

// list gives one object per page, so that continuing is tested. The server's mu is held.
func (l *kubeList) list(from string, version int) map[string]any {
	if from == "" {
		l.lists++
	}
	names := make([]string, 0, len(l.objects))
	for name := range l.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	at := 0
	if from != "" {
		at, _ = strconv.Atoi(from) // our own number
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	items := []any{}
	if at < len(names) {
		items = append(items, l.objects[names[at]])
		if at+1 < len(names) {
			meta["continue"] = strconv.Itoa(at + 1)
		}
	}
	return map[string]any{"metadata": meta, "items": items}
}

// catchUp sends what changed since a version. The server's mu is held.
func (l *kubeList) catchUp(lines chan<- string, version string) {
	since, _ := strconv.Atoi(version) // our own number
	for _, object := range l.objects {
		own, _ := strconv.Atoi(object["metadata"].(map[string]any)["resourceVersion"].(string)) // our own number
		if own > since {
			line, _ := json.Marshal(map[string]any{"type": "MODIFIED", "object": object}) // plain values
			lines <- string(line)
		}
	}
}

// endpointPod is a pod as an EndpointSlice has it.
type endpointPod struct {
	name, address string
	terminating   bool
}

// put makes or changes a slice and tells the watchers; quiet leaves them out.
func (k *kube) put(name, kind string, quiet bool, pods ...endpointPod) {
	endpoints := []any{}
	for _, p := range pods {
		endpoints = append(endpoints, map[string]any{
			"addresses": []string{p.address}, "conditions": map[string]any{"ready": !p.terminating, "terminating": p.terminating},
			"targetRef": map[string]any{"kind": "Pod", "name": p.name, "namespace": "models"}, "zone": "z1", "nodeName": "n1",
		})
	}
	k.change(&k.kubeList, name, quiet, map[string]any{
		"addressType": kind, "endpoints": endpoints,
		"ports": []any{map[string]any{"name": "http", "port": 8000}, map[string]any{"name": "metrics", "port": 9000}},
	}, nil)
}

// said is what a pod says of itself.
type said struct {
	labels, annotations, env map[string]string
	deleted                  bool
}

// putPod makes or changes a pod and tells the watchers.
func (k *kube) putPod(name string, s said) {
	meta := map[string]any{"labels": s.labels, "annotations": s.annotations}
	if s.deleted {
		meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	env := []any{map[string]any{"name": "FROM_A_SECRET", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "s", "key": "k"}}}}
	for variable, value := range s.env {
		env = append(env, map[string]any{"name": variable, "value": value})
	}
	k.change(&k.pods, name, false, map[string]any{"spec": map[string]any{"containers": []any{
		map[string]any{"name": "sidecar"}, map[string]any{"name": "vllm", "env": env},
	}}}, meta)
}

// change puts an object into a list.
func (k *kube) change(l *kubeList, name string, quiet bool, object, meta map[string]any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	if meta == nil {
		meta = map[string]any{}
	}
	meta["name"], meta["resourceVersion"] = name, strconv.Itoa(k.version)
	object["metadata"] = meta
	event := "MODIFIED"
	if l.objects[name] == nil {
		event = "ADDED"
	}
	l.objects[name] = object
	if !quiet {
		k.tell(l, event, object)
	}
}

func (k *kube) drop(l *kubeList, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	object := l.objects[name]
	delete(l.objects, name)
	object["metadata"] = map[string]any{"name": name, "resourceVersion": strconv.Itoa(k.version)}
	k.tell(l, "DELETED", object)
}

// tell sends an event to all watchers. k.mu is held.
func (k *kube) tell(l *kubeList, kind string, object any) {
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		k.problems = append(k.problems, err.Error())
	}
	for _, w := range l.watchers {
		w <- string(line)
	}
}

func (k *kube) endWatches() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range []*kubeList{&k.kubeList, &k.pods} {
		for _, w := range l.watchers {
			close(w)
		}
		l.watchers = nil
	}
}

func (k *kube) with(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}
