package enginesim_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

func (r *replica) page(t *testing.T, path string) string {
	t.Helper()
	resp, err := r.client.Get(r.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d, %v", path, resp.StatusCode, err)
	}
	return string(b)
}

func TestAdaptersComeAndGoAtRunTime(t *testing.T) {
	cfg := fast()
	cfg.Adapters, cfg.AdapterUpdates = []string{"law"}, true
	r := start(t, cfg)
	for i, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/v1/completions", `{"model":"tax","prompt":"x","max_tokens":1}`, 404, "does not exist"},
		{"/v1/load_lora_adapter", `{"lora_name":"tax","lora_path":"/adapters/tax"}`, 200, "'tax' added successfully"},
		{"/v1/load_lora_adapter", `{"lora_name":"tax","lora_path":"/adapters/tax"}`, 400, "already been loaded"},
		{"/v1/load_lora_adapter", `{"lora_name":"art"}`, 400, "must be provided"},
		{"/v1/load_lora_adapter", `{"lora_path":"/adapters/tax"}`, 400, "lora_name"},
		{"/v1/load_lora_adapter", `{"lora_name":"art","lora_path":"missing/art"}`, 404, "No adapter found"},
		{"/v1/load_lora_adapter", `{`, 400, "validation error"},
		{"/v1/completions", `{"model":"tax","prompt":"x","max_tokens":1}`, 200, `"model":"tax"`},
		{"/v1/unload_lora_adapter", `{"lora_name":"law"}`, 200, "'law' removed successfully"},
		{"/v1/unload_lora_adapter", `{"lora_name":"law"}`, 404, "cannot be found"},
		{"/v1/completions", `{"model":"law","prompt":"x","max_tokens":1}`, 404, "does not exist"},
	} {
		if status, body := r.post(t, c.path, c.body); status != c.status || !strings.Contains(string(body), c.says) {
			t.Errorf("%d: %s %s: %d %s", i, c.path, c.body, status, body)
		}
	}
	if list := r.page(t, "/v1/models"); !strings.Contains(list, `"root":"/adapters/tax"`) || strings.Contains(list, "law") {
		t.Errorf("the models are %s", list)
	}
	r.Restart(0)
	eventually(t, "the engine's next life", func() bool {
		resp, err := r.client.Get(r.url + "/v1/models")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(b), "law") && !strings.Contains(string(b), "tax")
	})
}

func TestTheMetricNamesTheAdaptersInFlight(t *testing.T) {
	cfg := fast()
	cfg.Adapters = []string{"law", "tax"}
	cfg.Core.Adapters = enginemodel.Adapters{Slots: 1, Load: time.Second}
	r := start(t, cfg)
	if page := r.page(t, "/metrics"); !strings.Contains(page, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""}`) {
		t.Errorf("an idle engine says %s", page)
	}
	ctx, leave := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for _, model := range []string{"law", "tax"} {
		clients.Go(func() {
			if resp, err := r.try(ctx, "/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":4000,"ignore_eos":true}`); err == nil {
				resp.Body.Close()
			}
		})
	}
	defer clients.Wait()
	defer leave()
	eventually(t, "one adapter to run and one to wait", func() bool {
		page := r.page(t, "/metrics")
		return strings.Contains(page, `running_lora_adapters="law",waiting_lora_adapters="tax"`) || strings.Contains(page, `running_lora_adapters="tax",waiting_lora_adapters="law"`)
	})
	without := start(t, fast())
	if page := without.page(t, "/metrics"); strings.Contains(page, "lora") {
		t.Error("an engine without LoRA has the metric")
	}
	if status, _ := without.post(t, "/v1/load_lora_adapter", `{"lora_name":"a","lora_path":"a"}`); status != http.StatusNotFound {
		t.Errorf("an engine without updates answers %d", status)
	}
}
