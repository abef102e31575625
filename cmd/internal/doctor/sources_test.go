package doctor

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// apiServer is a Kubernetes API server with a Service of no endpoints, which refuses some paths. It returns the settings of its source.
func apiServer(t *testing.T, refuse func(r *http.Request) bool) string {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case refuse(r):
			http.Error(w, `pods is forbidden: User "kvpilot" cannot do this`, http.StatusForbidden)
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // a client that left is no problem
			<-r.Context().Done()
		default:
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
		}
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})), "token": "t", "namespace": "models",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("  kubernetes: [{service: vllm, api_server: %s, credentials: %s}]\n", s.URL, dir)
}

func TestSourcesOfReplicas(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "replicas.yaml")
	if err := os.WriteFile(file, []byte("replicas: [{url: nonsense}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pods := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/pods") }
	for name, tc := range map[string]struct {
		registry string
		want     want
	}{
		"a service without endpoints": {apiServer(t, func(*http.Request) bool { return false }), want{Warn, "registry.kubernetes[0]", "lists none", "kubectl get endpointslices"}},
		"no right to list pods":       {apiServer(t, func(r *http.Request) bool { return pods(r) }), want{Fail, "registry.kubernetes[0]", "cannot do this", "pod_labels: ignore"}},
		"no right to watch pods":      {apiServer(t, func(r *http.Request) bool { return pods(r) && r.URL.Query().Get("watch") != "" }), want{Fail, "registry.kubernetes[0]", "watch pods: status 403", "list and watch on endpointslices"}},
		"no right at all":             {apiServer(t, func(*http.Request) bool { return true }), want{Fail, "registry.kubernetes[0]", "endpoint slices: status 403", "service account"}},
		"outside of a cluster":        {"  kubernetes: [{service: vllm, api_server: 'https://127.0.0.1:1', credentials: /no/such/folder}]\n", want{Fail, "registry.kubernetes[0]", "no such file", "Outside of a pod"}},
		"an unknown name":             {"  dns: [{name: no.such.name.invalid, port: 8000}]\n", want{Fail, "registry.dns[0]", "no such host", "dig"}},
		"no file":                     {"  file: /no/such/folder/replicas.yaml\n", want{Fail, "registry.file", "no such file", "write the file"}},
		"a broken file":               {"  file: " + file + "\n", want{Fail, "registry.file", "did you mean http://nonsense", "docs/replicas.md"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{replicas: 1, registry: tc.registry, params: func(p *Params) { p.NoSend = true }}
			expect(t, w.start(t), map[string]want{"replicas": tc.want})
		})
	}
	w := &world{params: func(p *Params) { p.Source.File = "" }}
	expect(t, w.start(t), map[string]want{"replicas": {Fail, "", "no source lists any", "--replica"}})
}

// requests sends prompts that differ to a replica.
func requests(t *testing.T, r running, n int) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range n {
		body, err := json.Marshal(map[string]any{"model": "sim", "prompt": fmt.Sprint(i, strings.Repeat(" word", 100)), "max_tokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Post(r.url+"/v1/completions", "application/json", bytes.NewReader(body))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
	}
}

// A router that begins late learns what replays hold; what they lack is reported.
func TestWhatReplaysLack(t *testing.T) {
	t.Parallel()
	whole := &world{replicas: 1, past: func(list []running) { requests(t, list[0], 6) }}
	expect(t, whole.start(t), nil)
	holes := &world{replicas: 1, past: func(list []running) {
		list[0].engine.SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{HoleEvents: 3}})
		requests(t, list[0], 7)
		list[0].engine.SetFaults(enginesim.Faults{})
	}}
	expect(t, holes.start(t), map[string]want{"replay": {Warn, "r0", "are in no replay", "hwm"}})
	short := &world{replicas: 1, engine: func(_ int, c *enginesim.Config) { c.ReplayBuffer = 2 }, past: func(list []running) { requests(t, list[0], 6) }}
	expect(t, short.start(t), map[string]want{"replay": {Warn, "r0", "degraded", "buffer_steps"}})
}

func TestTheClockOfEvents(t *testing.T) {
	now := time.Now()
	s := kvevents.Status{Progress: kvevents.Progress{LastEvent: now.Add(3 * time.Second), LastApplied: now.Add(time.Second), Lag: time.Second}}
	if ahead := eventsAhead(s); ahead != 3*time.Second || aheadText(ahead) != "3s ahead of this machine" || aheadText(-ahead) != "3s behind this machine" {
		t.Errorf("%v: %s", ahead, aheadText(ahead))
	}
}
