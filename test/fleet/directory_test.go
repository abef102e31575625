package fleet

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/directory/directorytest"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/test/stack"
)

// completion is an answer in one piece.
type completion struct {
	replica string
	cached  int
}

// complete has a router complete a prompt, on a replica if one is named.
func complete(t *testing.T, r *stack.Stack, ids []uint32, id, pin string) (c completion) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": ids, "max_tokens": 2, "ignore_eos": true})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+r.HTTP+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	if pin != "" {
		req.Header.Set("X-Kvpilot-Pin", pin)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(text, &answer) != nil {
		t.Fatalf("%s: %.300s, %v", resp.Status, text, err)
	}
	return completion{resp.Header.Get("X-Kvpilot-Replica"), answer.Usage.Details.Cached}
}

// The router that has a request asks the directory, and the router that decides counts on the answer.
func TestTheAnswerOfADirectoryReachesTheDecider(t *testing.T) {
	coordinator := new(directorytest.LMCache)
	service := httptest.NewServer(coordinator)
	defer service.Close()
	cfg := core.DefaultConfig()
	cfg.Lower.Store = core.LowerTier{Blocks: 20_000, PerToken: time.Microsecond}
	shared := core.NewStore(&cfg)
	var specs []registry.Spec
	var urls []string
	for _, id := range []string{"a", "b"} {
		spec := stack.Publisher(t, id, func(c *enginesim.Config) {
			c.Core.Blocks, c.Core.MaxModelLen = 200, 3000
			c.Core.Lower.Shared, c.Core.Seed = shared, 7
		})
		spec.Labels = map[string]string{replica.LabelInstance: "node-" + id}
		specs, urls = append(specs, spec), append(urls, spec.URL)
	}
	var routers []*stack.Stack
	for i := range 3 {
		o := fleetOptions(fmt.Sprintf("router-%d", i), routers, func(c *config.Config) {
			c.Registry.Replicas = specs
			c.Directory.Kind, c.Directory.URL, c.Directory.Budget = directory.LMCache, service.URL, time.Second
		})
		o.Existing = urls
		routers = append(routers, stack.Start(t, o))
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	linked(t, routers)
	for _, r := range routers {
		eventually(t, "all ranks are exact", func() bool { return metric(t, r, `kvpilot_kvindex_ranks{state="exact"}`) == 2 })
	}
	const chunks = 10
	dice := rand.New(rand.NewPCG(3, 32))
	other := map[string]string{"a": "b", "b": "a"}
	for i, r := range routers {
		ids := someIDs(dice, chunks*256+40)
		first := complete(t, r, ids, fmt.Sprint("first", i), "")
		for k := range 2 { // the GPU that has it loses it
			complete(t, r, someIDs(dice, 2600), fmt.Sprint("fill", i, k), first.replica)
		}
		coordinator.Put("sim", "", 1, ids, chunks, directorytest.Placement{Instance: "node-x", Tier: "l2", Backend: "fs", Shared: true})
		id := fmt.Sprint("loads", i)
		var c completion
		eventually(t, "the router has seen that no GPU holds the prompt", func() bool {
			hits := metric(t, r, `kvpilot_directory_lookups_total{result="hit"}`)
			c = complete(t, r, ids, id, other[first.replica])
			return metric(t, r, `kvpilot_directory_lookups_total{result="hit"}`) > hits
		})
		if c.cached < chunks*256 {
			t.Errorf("router %d: the engine found %d tokens, want at least %d", i, c.cached, chunks*256)
		}
		d := decisionAt(t, r, id)
		if d.Directory.Source != directory.LMCache || d.Directory.Result != directory.Hit {
			t.Errorf("router %d: the decision has %+v", i, d.Directory)
		}
		for _, one := range d.Candidates {
			if one.ReplicaID == other[first.replica] && one.Overlap.Disk != chunks*256 {
				t.Errorf("router %d: %d tokens in a store are counted on, want %d (decided by %q)", i, one.Overlap.Disk, chunks*256, d.DecidedBy)
			}
		}
	}
	if alone := sumOf(t, routers, "kvpilot_peers_alone_total"); alone != 0 {
		t.Errorf("routers decided %v alone", alone)
	}
}

// listedDecision is a decision about a request with a directory.
type listedDecision struct {
	DecidedBy string `json:"decided_by"`
	Directory struct {
		Source string `json:"source"`
		Result string `json:"result"`
	} `json:"directory"`
	Candidates []struct {
		ReplicaID string `json:"replica_id"`
		Overlap   struct {
			Disk int `json:"disk_tokens"`
		} `json:"overlap"`
	} `json:"candidates"`
}

// decisionAt is the first decision about a request that a router lists.
func decisionAt(t *testing.T, r *stack.Stack, id string) (d listedDecision) {
	t.Helper()
	eventually(t, "the decision is listed", func() bool {
		resp, err := http.Get("http://" + r.HTTP + "/kvpilot/v1/requests/" + id + "/decisions")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		var list struct {
			Decisions []listedDecision `json:"decisions"`
		}
		if err != nil || json.Unmarshal(text, &list) != nil || len(list.Decisions) == 0 {
			return false
		}
		d = list.Decisions[len(list.Decisions)-1]
		return true
	})
	return d
}
