package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// Six adapters on three replicas with two slots each: after its first request, no adapter is loaded again.
func TestAdaptersStayWhereTheyWereLoaded(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 3, engine: func(_ int, c *enginesim.Config) {
		for i := range 6 {
			c.Adapters = append(c.Adapters, fmt.Sprintf("tuned-%d", i))
		}
		c.Core.Adapters = enginemodel.Adapters{Slots: 2, Load: 5 * time.Second, Activate: time.Second}
	}})
	f.eventually("the engines' slots are known", func() bool {
		return f.metric("kvpilot_enginestats_polls_total", `outcome="ok"`) >= 3
	})
	at := map[string]string{}
	for round := range 4 {
		for i := range 6 {
			name := fmt.Sprintf("tuned-%d", i)
			a := f.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"round %d of %d"}],"max_tokens":2}`, name, round, i))
			if a.status != 200 {
				t.Fatalf("%s: %d %s", name, a.status, a.body)
			}
			by := a.header.Get("X-Kvpilot-Replica")
			if before := at[name]; before != "" && before != by {
				t.Errorf("round %d: %s is served by %s, it was loaded by %s", round, name, by, before)
			}
			at[name] = by
		}
	}
	choices, held := "kvpilot_chooser_adapter_choices_total", "kvpilot_chooser_adapters"
	// One that an engine had in flight when its metrics were read runs until they are read again.
	if n := f.metric(choices, `state="resident"`) + f.metric(choices, `state="running"`); n != 18 {
		t.Errorf("%v of 24 requests found their adapter loaded, want 18", n)
	}
	if n := f.metric(held, `state="idle"`) + f.metric(held, `state="running"`); n != 6 {
		t.Errorf("%v adapters are in the record, want 6", n)
	}
}

// An adapter that one replica lists is loaded on the others while it is asked for often.
func TestAHotAdapterIsLoadedOnOtherReplicas(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 3, yaml: "adapters: {spread: true, interval: 100ms}\n", engine: func(i int, c *enginesim.Config) {
		c.AdapterUpdates, c.Core.Timing.Speed = true, 50
		if i == 0 {
			c.Adapters = []string{"hot"}
		}
	}})
	by := map[string]bool{}
	f.eventually("each replica serves the adapter", func() bool {
		a := f.post("/v1/chat/completions", `{"model":"hot","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`)
		if a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return f.metric("kvpilot_adapters_changes_total", `action="load"`, `result="done"`) >= 2
	})
	f.eventually("requests reach it everywhere", func() bool {
		for _, url := range f.urls {
			pin := postTo(t, url+"/v1/completions", `{"model":"hot","prompt":"x","max_tokens":1}`)
			by[url] = by[url] || pin.status == 200
		}
		return len(by) == 3 && by[f.urls[0]] && by[f.urls[1]] && by[f.urls[2]]
	})
}

func TestExplainNamesTheAdaptersCost(t *testing.T) {
	var out strings.Builder
	d := &kvpilotv1.Decision{Adapter: "tuned", Candidates: []*kvpilotv1.Candidate{
		{ReplicaId: "gpu-1", Adapter: &kvpilotv1.AdapterCost{State: kvpilotv1.AdapterState_ADAPTER_STATE_RESIDENT}},
		{ReplicaId: "gpu-2", Rank: 1, Adapter: &kvpilotv1.AdapterCost{
			State: kvpilotv1.AdapterState_ADAPTER_STATE_FULL, Wait: durationpb.New(3 * time.Second), Load: durationpb.New(200 * time.Millisecond), Loss: durationpb.New(50 * time.Millisecond),
		}},
	}}
	if err := printDecision(&out, d); err != nil {
		t.Fatal(err)
	}
	if want := "adapter tuned: gpu-1/0 resident, gpu-2/1 full (waits 3000 ms) (loads in 200 ms) (costs others 50.0 ms)\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%s\ndoes not say %s", out.String(), want)
	}
}
