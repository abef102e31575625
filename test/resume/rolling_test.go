package resume

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/programs"
	"github.com/kvpilot/kvpilot/test/stack"
)

// each calls visit for each replica.
func each(t *testing.T, s *stack.Stack, visit func(id string, inFlight int)) {
	t.Helper()
	resp, err := http.Get("http://" + s.HTTP + "/kvpilot/v1/replicas")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Replicas []struct {
			ID    string `json:"replica_id"`
			Drain *struct {
				InFlight int `json:"in_flight"`
			} `json:"drain"`
		} `json:"replicas"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Replicas {
		n := -1
		if r.Drain != nil {
			n = r.Drain.InFlight
		}
		visit(r.ID, n)
	}
}

// A rolling update of all replicas under a hundred streams of all kinds loses none, and each replica is soon empty.
func TestARollingUpdateLosesNoStream(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute")
	}
	const atOnce, bodies = 100, 40
	s := stack.Start(t, stack.Options{Replicas: 4, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 60, 1
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	body := func(i int) string {
		i %= bodies
		return `{"model":"sim","temperature":0,"stream":true,"max_tokens":80,"stream_options":{"include_usage":true},` + fmt.Sprintf(kinds[i%len(kinds)], i) + `}`
	}
	var want [bodies]string
	var all sync.WaitGroup
	for i := range want {
		all.Go(func() { want[i] = ask(t, "http://"+s.HTTP, body(i)).text() })
	}
	all.Wait()
	var over atomic.Bool
	var next, streams atomic.Int64
	for range atOnce {
		all.Go(func() {
			for !over.Load() {
				i := int(next.Add(1))
				if got := ask(t, "http://"+s.HTTP, body(i)); got.text() != want[i%bodies] {
					t.Errorf("stream %d: the client has\n%s\nwant\n%s", i, got.text(), want[i%bodies])
				}
				streams.Add(1)
			}
		})
	}
	var ids []string
	each(t, s, func(id string, _ int) { ids = append(ids, id) })
	for _, id := range ids {
		time.Sleep(time.Second) // until it has its share of the streams
		drain(t, s, id, "drain")
		began, most, left := time.Now(), 0, 1
		for left > 0 && time.Since(began) < 60*time.Second {
			each(t, s, func(other string, inFlight int) {
				if other == id {
					left, most = inFlight, max(most, inFlight)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		took := time.Since(began)
		t.Logf("%s had %d streams, and was empty after %s", id, most, took.Round(10*time.Millisecond))
		if took > programs.Patient(5*time.Second) || most == 0 {
			t.Errorf("%s had %d streams, and took %s to be empty", id, most, took)
		}
		drain(t, s, id, "undrain")
	}
	over.Store(true)
	all.Wait()
	moved, lost := results(t, s, "moved"), counted(t, s, "kvpilot_router_interrupted_total", "result", "lost")
	t.Logf("%d streams, %d moved, %d lost", streams.Load(), moved, lost)
	if moved == 0 || lost != 0 {
		t.Errorf("%d streams moved and %d were lost", moved, lost)
	}
}
