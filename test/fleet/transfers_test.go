package fleet

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// passing starts n routers in front of simulated replicas that pass their caches on, so many times as fast as a 70B model.
func passing(t *testing.T, connector string, n, replicas int, speed float64, configure func(*config.Config)) []*stack.Stack {
	t.Helper()
	var specs []registry.Spec
	var urls []string
	for i := range replicas {
		r := stack.Publisher(t, string(rune('a'+i)), func(c *enginesim.Config) {
			c.Version, c.Transfer.Connector, c.Core.Timing.Speed = "0.33.0", connector, speed
		})
		r.Labels = map[string]string{replica.LabelConnector: connector, replica.LabelBootstrap: r.URL}
		specs, urls = append(specs, r), append(urls, r.URL)
	}
	var routers []*stack.Stack
	for i := range n {
		o := fleetOptions(fmt.Sprintf("router-%d", i), routers, func(c *config.Config) {
			c.Registry.Replicas = specs
			configure(c)
		})
		o.Existing = urls
		routers = append(routers, stack.Start(t, o))
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	linked(t, routers)
	for _, r := range routers {
		eventually(t, "all ranks are exact", func() bool { return metric(t, r, `kvpilot_kvindex_ranks{state="exact"}`) == float64(replicas) })
	}
	return routers
}

// someIDs are random token ids.
func someIDs(dice *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 1000 + dice.Uint32N(20_000)
	}
	return ids
}

// completed asks a router to complete a prompt, as a stream.
func completed(r *stack.Stack, ids []uint32, tokens int) (text, prefill string, cached int, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "sim", "prompt": ids, "max_tokens": tokens, "ignore_eos": true, "seed": 7, "stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return "", "", 0, err
	}
	resp, err := http.Post("http://"+r.HTTP+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", "", 0, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.HasSuffix(all, []byte("data: [DONE]\n\n")) {
		return "", "", 0, fmt.Errorf("%s: %.300s, %w", resp.Status, all, err)
	}
	for line := range bytes.Lines(all) {
		var event struct {
			Choices []struct {
				Text string `json:"text"`
			} `json:"choices"`
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		data, ok := bytes.CutPrefix(line, []byte("data: {"))
		if !ok {
			continue
		}
		if err := json.Unmarshal(append([]byte("{"), data...), &event); err != nil {
			return "", "", 0, err
		}
		for _, c := range event.Choices {
			text += c.Text
		}
		cached = max(cached, event.Usage.Details.Cached)
	}
	return text, resp.Header.Get("X-Kvpilot-Prefill"), cached, nil
}

// sumOf sums a series of all routers.
func sumOf(t *testing.T, routers []*stack.Stack, series string) (sum float64) {
	t.Helper()
	for _, r := range routers {
		sum += metric(t, r, series)
	}
	return sum
}

func TestRequestsAtAnyRouterAreSplit(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for three fleets")
	}
	stack.Aside(t)
	for _, connector := range []string{"nixl", "nixl-push", "mooncake"} {
		t.Run(connector, func(t *testing.T) { splitAtAnyRouter(t, connector) })
	}
}

func splitAtAnyRouter(t *testing.T, connector string) {
	routers := passing(t, connector, 3, 3, 50, func(c *config.Config) { c.Chooser.Weights = map[string]float64{"split_bonus": 1000} })
	dice := rand.New(rand.NewPCG(1, 32))
	for i := range 12 {
		r, ids := routers[i%3], someIDs(dice, 3000)
		text, prefill, _, err := completed(r, ids, 8)
		if err != nil || prefill == "" || text == "" {
			t.Errorf("request %d: %q by %q: %v", i, text, prefill, err)
		}
	}
	for i, r := range routers {
		if done, read := metric(t, r, `kvpilot_router_prefills_total{result="done"}`), metric(t, r, `kvpilot_router_transfers_total{result="read"}`); done != 4 || read != 4 {
			t.Errorf("router %d has had %v prompts computed and %v caches read, want 4 of its own requests", i, done, read)
		}
		if alone := metric(t, r, "kvpilot_peers_alone_total"); alone != 0 {
			t.Errorf("router %d decided %v alone", i, alone)
		}
	}
	eventually(t, "nothing is booked", func() bool {
		return sumOf(t, routers, "kvpilot_peers_bookings")+sumOf(t, routers, "kvpilot_peers_foreign_bookings")+sumOf(t, routers, "kvpilot_load_requests") == 0
	})
}

func TestPrefixesAreCopiedForRequestsAtAllRouters(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for prompts at the speed of an engine")
	}
	stack.Aside(t)
	routers := passing(t, "nixl", 3, 3, 2, func(*config.Config) {})
	dice := rand.New(rand.NewPCG(2, 32))
	for range 4 { // the speed of each replica
		for _, r := range routers {
			if _, _, _, err := completed(r, someIDs(dice, 4000), 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	context := someIDs(dice, 24_000)
	if _, _, _, err := completed(routers[0], context, 2); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	short := 0
	for i := range 48 {
		ids := append(context[:len(context):len(context)], someIDs(dice, 600)...)
		all.Go(func() {
			_, _, cached, err := completed(routers[i%3], ids, 40)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("branch %d: %v", i, err)
			}
			if cached < len(context)-16 {
				short++
			}
		})
	}
	all.Wait()
	copies := map[string]float64{}
	for _, r := range routers {
		for _, result := range []string{"done", "missing", "source", "no_cache", "mismatch", "target", "late"} {
			copies[result] += metric(t, r, `kvpilot_router_copies_total{result="`+result+`"}`)
		}
	}
	waited := sumOf(t, routers, `kvpilot_chooser_ways_total{way="copy"}`)
	alone, ahead := sumOf(t, routers, "kvpilot_peers_alone_total"), sumOf(t, routers, "kvpilot_chooser_copies_ahead_total")
	t.Logf("copies %v (%v ahead), %v requests waited for one, %d computed the context, %v choices alone", copies, ahead, waited, short, alone)
	// One to each of two replicas, also where an event comes after the answer of its copy.
	if copies["done"] < 1 || copies["done"] > 2 || copies["source"]+copies["no_cache"]+copies["mismatch"]+copies["target"] > 0 || waited == 0 {
		t.Errorf("copies %v (%v ahead), %v requests waited for one, %v choices alone", copies, ahead, waited, alone)
	}
	if short > 3 {
		t.Errorf("%d of 48 branches found no context", short)
	}
}
