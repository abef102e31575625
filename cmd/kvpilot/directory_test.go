package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/directory/directorytest"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// lookedUp is a decision's question to a directory, and its chosen candidate's part of the prompt.
type lookedUp struct {
	ReplicaID string `json:"replica_id"`
	Directory *struct {
		Source string `json:"source"`
		Result string `json:"result"`
	} `json:"directory"`
	Candidates []struct {
		ReplicaID string `json:"replica_id"`
		Named     int    `json:"named_tokens"`
		Loadable  int    `json:"loadable_tokens"`
	} `json:"candidates"`
	Outcome *struct {
		Cached    int `json:"cached_tokens"`
		Predicted int `json:"predicted_cached_tokens"`
	} `json:"outcome"`
}

// named is how many tokens of its prompt a decision's replica held by the directory's word.
func (d *lookedUp) named() int {
	for _, c := range d.Candidates {
		if c.ReplicaID == d.ReplicaID {
			return c.Named
		}
	}
	return -1
}

// sharingAStore starts two replicas with a store that they share and the label kv_instance, and a router without the label that they share it.
func sharingAStore(t *testing.T, service *httptest.Server, kind, more string) *fleet {
	t.Helper()
	cfg := core.DefaultConfig()
	cfg.Lower.Store = core.LowerTier{Blocks: 10_000, PerToken: time.Microsecond}
	shared := core.NewStore(&cfg)
	f := startFleet(t, fleetOptions{
		replicas: 2, labels: "{kv_instance: node-1}",
		engine: func(_ int, c *enginesim.Config) {
			c.Core.Blocks, c.Core.MaxModelLen = 200, 2000
			c.Core.Lower.Shared, c.Core.Seed = shared, 7
			c.Core.Timing.PrefillRate = 500 // what is computed takes long
		},
		yaml: fmt.Sprintf("directory: {kind: %s, url: %q, budget: 900ms, least_tokens: 32%s}\n", kind, service.URL, more),
	})
	f.eventually("the replicas' block size is known", func() bool { // before that a conductor is not asked
		resp, err := http.Get("http://" + f.http + "/kvpilot/v1/replicas")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		list, err := io.ReadAll(resp.Body)
		return err == nil && strings.Count(string(list), `"block_size":16`) == 2
	})
	return f
}

// outOf has other prompts take the prompt's place on a replica's GPU.
func (f *fleet) outOf(replica, body string) {
	f.t.Helper()
	for i := 0; f.overlaps(body)[replica] > 0; i++ {
		if i == 40 {
			f.t.Fatalf("%s still holds the prompt on its GPU", replica)
		}
		f.askAt(replica, conversation(fmt.Sprint("other", i), 3, ""))
	}
}

// What r0 has put into a store, r1 loads: no event of an engine says so, the directory does. The choice, the record and the engine's own count agree.
func TestADirectoryNamesWhatReplicasCanLoad(t *testing.T) {
	for _, kind := range []string{"lmcache", "mooncake"} {
		t.Run(kind, func(t *testing.T) {
			coordinator, conductor := new(directorytest.LMCache), new(directorytest.Conductor)
			handler := http.Handler(coordinator)
			if kind == "mooncake" {
				handler = conductor
			}
			service := httptest.NewServer(handler)
			defer service.Close()
			f := sharingAStore(t, service, kind, "")
			body := conversation("named", 3, "")
			f.askAt("r0", body)
			f.outOf("r0", body)
			whole := 0
			switch kind {
			case "lmcache":
				ids := coordinator.Asked()[0]
				whole = len(ids) / 256 * 256
				coordinator.Put("sim", "", 1, ids, len(ids)/256, directorytest.Placement{Instance: "node-9", Tier: "l2", Backend: "fs", Shared: true})
			case "mooncake":
				of := conductor.Asked()[0]
				whole = (len(of.IDs) - 1) / 16 * 16
				conductor.Put(of, "node-1", directorytest.Match{Disk: whole})
			}
			if whole < 256 {
				t.Fatalf("the prompt has %d tokens in whole chunks", whole)
			}
			f.post("/v1/chat/completions", body, "X-Kvpilot-Pin", "r1", "X-Request-Id", "loads")
			f.decisionOf("loads")
			d := f.lookedUp("loads")
			if d.Directory == nil || d.Directory.Source != kind || d.Directory.Result != "hit" || d.named() != whole {
				t.Fatalf("directory %+v, %d tokens by its word, want a hit and %d", d.Directory, d.named(), whole)
			}
			if o := d.Outcome; o.Predicted != whole || o.Cached < whole {
				t.Errorf("the engine counted %d cached tokens, predicted %d, want %d", o.Cached, o.Predicted, whole)
			}
			text := f.explained(t, "loads")
			for _, want := range []string{fmt.Sprintf("%d (%d store)", whole, whole), fmt.Sprintf("%d of them by the directory's word", whole), "directory " + kind + ": hit in "} {
				if !strings.Contains(text, want) {
					t.Errorf("explain lacks %q:\n%s", want, text)
				}
			}
			if n := f.metric("kvpilot_directory_lookups_total", `result="hit"`); n != 1 {
				t.Errorf("%v hits are counted", n)
			}
			if share := f.metric("kvpilot_chooser_tier_found_ratio", `replica="r1"`, `tier="directory"`); share != 1 {
				t.Errorf("the engine has found %v of what the directory named", share)
			}
		})
	}
}

// lookedUp reads the last decision of a request.
func (f *fleet) lookedUp(requestID string) (d lookedUp) {
	f.t.Helper()
	f.decisionInto(requestID, &d)
	return d
}

// A directory that lies is believed less with each request, and no request fails because of it.
func TestADirectoryThatLiesIsNotBelieved(t *testing.T) {
	coordinator := new(directorytest.LMCache)
	service := httptest.NewServer(coordinator)
	defer service.Close()
	f := sharingAStore(t, service, "lmcache", "")
	for i := range 30 {
		body := conversation(fmt.Sprint("never sent", i), 3, "")
		asked := len(coordinator.Asked())
		f.below(body)
		list := coordinator.Asked()
		if len(list) != asked+1 {
			t.Fatalf("%d questions about one prompt", len(list)-asked)
		}
		coordinator.Put("sim", "", 1, list[asked], 1, directorytest.Placement{Instance: "node-1", Tier: "l1", Backend: "dram"})
		cached(t, f.post("/v1/chat/completions", body, "X-Kvpilot-Pin", "r1", "X-Request-Id", fmt.Sprint("lie", i)))
	}
	f.decisionOf("lie29")
	d := f.lookedUp("lie29")
	for _, c := range d.Candidates {
		if c.ReplicaID == "r1" && (c.Named != 256 || c.Loadable != 0) {
			t.Errorf("after 29 lies %d tokens by the directory's word, %d counted on, want 256 and none", c.Named, c.Loadable)
		}
	}
	if share := f.metric("kvpilot_chooser_tier_found_ratio", `replica="r1"`, `tier="directory"`); share > 0.05 {
		t.Errorf("the share found is %v", share)
	}
}

// However the directory fails, requests are answered, and wait no longer than the budget.
func TestARequestOutlivesItsDirectory(t *testing.T) {
	var mode atomic.Value
	mode.Store("hangs")
	coordinator := new(directorytest.LMCache)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch mode.Load() {
		case "hangs":
			_, _ = io.Copy(io.Discard, r.Body) // only then does a server notice that its client has left
			<-r.Context().Done()
		case "half":
			_, _ = w.Write([]byte(`{"chunks":3,"resu`))
		case "wrong":
			_, _ = w.Write([]byte(`{"chunks":77,"results":[]}`))
		case "refuses":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			coordinator.ServeHTTP(w, r)
		}
	}))
	defer service.Close()
	f := sharingAStore(t, service, "lmcache", "")
	f.rewrite(strings.Replace(f.text, "budget: 900ms", "budget: 400ms", 1))
	if out, err := f.cli("reload"); err != nil {
		t.Fatalf("reload: %v %s", err, out)
	}
	n := 0
	ask := func() (string, time.Duration) {
		n++
		id := fmt.Sprint("outlives", n)
		began := time.Now()
		cached(t, f.post("/v1/chat/completions", conversation(id, 3, ""), "X-Request-Id", id))
		took := time.Since(began)
		f.decisionOf(id)
		if d := f.lookedUp(id); d.Directory != nil {
			return d.Directory.Result, took
		}
		return "not asked", took
	}
	for _, step := range []struct{ mode, want string }{{"hangs", "late"}, {"half", "gone"}, {"works", "miss"}, {"wrong", "wrong"}, {"refuses", "refused"}, {"works", "miss"}} {
		mode.Store(step.mode)
		if got, took := ask(); got != step.want {
			t.Errorf("%s: %s after %v, want %s", step.mode, got, took, step.want)
		}
	}
	service.CloseClientConnections()
	service.Close()
	for _, want := range []string{"gone", "gone", "gone", "resting"} {
		if got, took := ask(); got != want {
			t.Errorf("without a service: %s after %v, want %s", got, took, want)
		}
	}
}
