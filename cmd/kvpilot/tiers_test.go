package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// below is a prompt's part that each rank holds in host memory and in a store, by the router's own answer.
func (f *fleet) below(body string) (host, store map[string]int) {
	f.t.Helper()
	question, err := json.Marshal(map[string]any{"model": "sim", "body": map[string]any{"json": []byte(body)}})
	if err != nil {
		f.t.Fatal(err)
	}
	a := f.post("/kvpilot/v1/overlap", string(question))
	var answer struct {
		Ranks []struct {
			ReplicaID string `json:"replica_id"`
			Overlap   struct {
				CPUTokens  int `json:"cpu_tokens"`
				DiskTokens int `json:"disk_tokens"`
			} `json:"overlap"`
		} `json:"ranks"`
	}
	if err := json.Unmarshal(a.body, &answer); a.status != http.StatusOK || err != nil {
		f.t.Fatalf("%d %v: %s", a.status, err, a.body)
	}
	host, store = map[string]int{}, map[string]int{}
	for _, r := range answer.Ranks {
		host[r.ReplicaID], store[r.ReplicaID] = r.Overlap.CPUTokens, r.Overlap.DiskTokens
	}
	return host, store
}

// From the engines' events to the choice, the record and the engine's own count: a prompt that its replica has lost from the GPU goes back there, since
// host memory still holds it.
func TestAPromptReturnsToTheHostMemoryThatHoldsIt(t *testing.T) {
	t.Parallel()
	for _, describing := range []bool{false, true} {
		t.Run(fmt.Sprintf("self-describing %t", describing), func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 2, engine: func(_ int, c *enginesim.Config) {
				c.Core.Blocks, c.Core.MaxModelLen = 200, 2000
				c.Core.Lower.Host = core.LowerTier{Blocks: 10_000, PerToken: time.Microsecond}
				c.Core.Lower.SelfDescribing = describing
				c.Core.Timing.PrefillRate = 500 // what is computed takes long
			}})
			body := conversation("returning", 3, "")
			f.askAt("r1", body)
			f.eventually("the GPU holds it", func() bool { return f.overlaps(body)["r1"] > 0 })
			for i := 0; f.overlaps(body)["r1"] > 0; i++ {
				if i == 40 {
					t.Fatal("the GPU still holds it")
				}
				f.askAt("r1", conversation(fmt.Sprint("other", i), 3, ""))
			}
			var host map[string]int
			f.eventually("host memory holds it", func() bool { host, _ = f.below(body); return host["r1"] > 0 })
			if host["r0"] != 0 {
				t.Errorf("another replica is said to hold %d tokens", host["r0"])
			}
			a := f.post("/v1/chat/completions", body, "X-Request-Id", "returns")
			if at := a.header.Get("X-Kvpilot-Replica"); at != "r1" {
				t.Errorf("it went to %s, r1 has %d of its tokens in host memory", at, host["r1"])
			}
			o := f.decisionOf("returns").Outcome
			if o.CachedTokens != host["r1"] || o.PredictedCachedTokens != host["r1"] {
				t.Errorf("the engine counted %d cached tokens, predicted %d, want %d", o.CachedTokens, o.PredictedCachedTokens, host["r1"])
			}
			text := f.explained(t, "returns")
			for _, want := range []string{fmt.Sprintf("%d (%d host)", host["r1"], host["r1"]), fmt.Sprintf("loads %d of %d tokens below its GPU", host["r1"], host["r1"])} {
				if !strings.Contains(text, want) {
					t.Errorf("explain lacks %q:\n%s", want, text)
				}
			}
		})
	}
}

// explained is the output of explain.
func (f *fleet) explained(t *testing.T, id string) string {
	t.Helper()
	var out, errs strings.Builder
	if err := run(t.Context(), []string{"explain", id, "--address", f.grpc}, nil, &out, &errs); err != nil {
		t.Fatalf("explain: %v %s", err, errs.String())
	}
	return out.String()
}

// What one replica has put into a shared store, another one loads.
func TestAStoreServesTheReplicasThatShareIt(t *testing.T) {
	t.Parallel()
	cfg := core.DefaultConfig()
	cfg.Lower.Store = core.LowerTier{Blocks: 10_000, PerToken: time.Microsecond}
	shared := core.NewStore(&cfg)
	f := startFleet(t, fleetOptions{replicas: 2, yaml: "", engine: func(_ int, c *enginesim.Config) {
		c.Core.Lower.Shared, c.Core.Seed = shared, 7
	}, labels: "{kv_store: one}"})
	body := conversation("shared", 3, "")
	f.askAt("r0", body)
	var store map[string]int
	f.eventually("the other replica can load it", func() bool { _, store = f.below(body); return store["r1"] > 0 })
	f.post("/v1/chat/completions", body, "X-Kvpilot-Pin", "r1", "X-Request-Id", "loads")
	o := f.decisionOf("loads").Outcome
	if o.CachedTokens != store["r1"] || o.PredictedCachedTokens != store["r1"] {
		t.Errorf("the engine counted %d cached tokens, predicted %d, want %d", o.CachedTokens, o.PredictedCachedTokens, store["r1"])
	}
}
