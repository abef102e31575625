package gateway

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// cluster is an API server with objects that do not change.
func cluster(t *testing.T, lists map[string][]any) registry.InferencePoolConfig {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"token": "t", "namespace": "models"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list, known := lists[r.URL.Path]
		switch {
		case !known:
			http.NotFound(w, r)
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // a client that left is noticed below
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": list}) // as above
		}
	}))
	t.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	return registry.InferencePoolConfig{Name: "sims", APIServer: api.URL, Credentials: dir}
}

// A router that knows nothing but the name of an InferencePool serves a gateway: replicas and the names of models come from the cluster.
func TestReplicasAndModelsComeFromTheInferencePool(t *testing.T) {
	engine := stack.Start(t, stack.Options{Replicas: 1, Engine: func(c *enginesim.Config) { c.Core.Timing.Speed = 50 }}) // its router is not used
	_, port, err := net.SplitHostPort(endpoint(engine.Replicas[0]))
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	named := func(name string) object { return object{"name": name, "resourceVersion": "1"} }
	pool := object{"name": "sims"}
	const policies = "/apis/llm-d.ai/v1alpha2/namespaces/models/"
	conf := cluster(t, map[string][]any{
		"/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools": {object{
			"metadata": named("sims"), "spec": object{"selector": object{"matchLabels": object{"app": "sim"}}, "targetPorts": []any{object{"number": number}}},
		}},
		"/api/v1/namespaces/models/pods": {object{
			"metadata": named("sim-0"), "status": object{"podIP": "127.0.0.1", "conditions": []any{object{"type": "Ready", "status": "True"}}},
		}},
		policies + "inferencemodelrewrites": {object{"metadata": named("names"), "spec": object{"poolRef": pool, "rules": []any{object{"targets": []any{object{"modelRewrite": "sim"}}}}}}},
	})
	s := stack.Start(t, stack.Options{Existing: engine.Replicas, Configure: configure(func(c *config.Config) {
		c.Registry.Replicas, c.Registry.InferencePools = nil, []registry.InferencePoolConfig{conf}
	})})
	g := dial(t, s.EPP, false, plainDuplex)
	question := sent{path: "/v1/chat/completions", body: strings.Replace(ask("hello", false).body, `"sim"`, `"any-name"`, 1)}
	eventually(t, "a request is served", func() bool {
		out, err := g.do(t.Context(), question)
		return err == nil && out.status == http.StatusOK && out.endpoint == endpoint(engine.Replicas[0]) && strings.Contains(out.body, `"model":"sim"`)
	})
	settled(t, s)
}
