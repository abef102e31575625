package fleet

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestModelsThatShareReplicasAreOnePool(t *testing.T) {
	c := registry.DefaultConfig()
	for id, models := range map[string]string{
		"r1": `{"data":[{"id":"llama"},{"id":"law","parent":"llama"}]}`, "r2": `{"data":[{"id":"llama"}]}`,
		"r3": `{"data":[{"id":"qwen"},{"id":"maths","parent":"qwen"}]}`, "r4": `{"data":[{"id":"maths","parent":"qwen"},{"id":"adds","parent":"qwen"}]}`,
	} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(models)) }))
		defer engine.Close()
		c.Replicas = append(c.Replicas, registry.Spec{ID: replica.ID(id), URL: engine.URL})
	}
	c.Aliases = map[string]string{"a-llama": "llama"}
	r := registry.New(c, registry.Params{Scope: scope.Logged(slog.New(slog.DiscardHandler))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
		http.DefaultClient.CloseIdleConnections()
	}()
	for deadline := time.Now().Add(10 * time.Second); r.Snapshot().Silent() > 0 || len(r.Snapshot().Models()) < 6; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("models %v", r.Snapshot().Models())
		}
	}
	names := poolNames{registry: r}
	got := map[string]string{}
	for _, model := range []string{"llama", "law", "a-llama", "llama:law", "qwen", "maths", "adds", "unknown"} {
		got[model] = names.of(model)
	}
	want := map[string]string{
		"llama": "a-llama", "law": "a-llama", "a-llama": "a-llama", "llama:law": "a-llama", "qwen": "adds", "maths": "adds", "adds": "adds", "unknown": "unknown",
	}
	if !maps.Equal(got, want) {
		t.Errorf("pools %v, want %v", got, want)
	}
}
