package fleet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// longAnswer is the length in tokens of the answers that a drain moves.
const longAnswer = 600

// written is a whole answer as a client has it.
type written struct {
	text   string
	tokens int
}

// write asks a router for a long answer and calls begun at its first text.
func write(r *stack.Stack, prompt string, streamed bool, begun func()) (written, error) {
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":%d,"ignore_eos":true,"temperature":0`, prompt, longAnswer)
	if streamed {
		body += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	resp, err := http.Post("http://"+r.HTTP+"/v1/completions", "application/json", strings.NewReader(body+"}"))
	if err != nil {
		return written{}, err
	}
	defer resp.Body.Close()
	var out written
	done := !streamed
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data := strings.TrimPrefix(lines.Text(), "data: ")
		if done = done || data == "[DONE]"; data == "" || data == "[DONE]" {
			continue
		}
		var v struct {
			Choices []struct{ Text string }
			Usage   *struct {
				Completion int `json:"completion_tokens"`
			}
			Error any
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil || v.Error != nil || resp.StatusCode != http.StatusOK {
			return out, fmt.Errorf("%s: %s", resp.Status, data)
		}
		for _, c := range v.Choices {
			out.text += c.Text
			begun()
		}
		if v.Usage != nil {
			out.tokens = v.Usage.Completion
		}
	}
	if !done || out.tokens != longAnswer {
		return out, fmt.Errorf("%s: %d tokens, done %t", resp.Status, out.tokens, done)
	}
	return out, nil
}

// A drain that moves empties a replica while the answers that it was writing continue elsewhere, to the letter, at all routers.
func TestADrainMovesRequestsUnderWay(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	t.Parallel()
	o := fleetOptions("router-0", nil)
	o.Engine = func(c *enginesim.Config) { c.Core.Timing.Speed = 1 }
	first := stack.Start(t, o)
	routers := []*stack.Stack{first, startOne(t, "router-1", []*stack.Stack{first})}
	linked(t, routers)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	const each = 10
	want := make([]written, each)
	var all sync.WaitGroup
	for i := range want {
		all.Go(func() {
			var err error
			if want[i], err = write(first, fmt.Sprintf("Story %d", i), true, func() {}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	var begun, ended atomic.Int64
	for n, r := range routers {
		for i := range each {
			all.Go(func() {
				got, err := write(r, fmt.Sprintf("Story %d", i), true, sync.OnceFunc(func() { begun.Add(1) }))
				ended.Add(1)
				if err != nil || got != want[i] {
					t.Errorf("router %d, story %d: %v\n%q\nwant\n%q", n, i, err, got.text, want[i].text)
				}
			})
		}
		all.Go(func() {
			if _, err := write(r, "An answer as a whole", false, func() {}); err != nil {
				t.Errorf("router %d: %v", n, err)
			}
			ended.Add(1)
		})
	}
	eventually(t, "each stream has begun", func() bool { return begun.Load() == 2*each })
	list, err := replicasOf(t, first).List(t.Context(), &kvpilotv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	leaving := list.GetReplicas()[0].GetReplicaId()
	out, err := replicasOf(t, routers[1]).Drain(t.Context(), &kvpilotv1.DrainRequest{ReplicaId: leaving, Move: true})
	if err != nil || !out.GetReplica().GetDrain().GetMove() {
		t.Fatalf("Drain() = %v, %v", out, err)
	}
	if out.GetReplica().GetDrain().GetInFlight() == 0 {
		t.Fatal("nothing is in flight on the replica: the test shows nothing")
	}
	eventually(t, "the replica is empty", func() bool {
		got, err := replicasOf(t, first).Get(t.Context(), &kvpilotv1.GetRequest{ReplicaId: leaving})
		return err == nil && got.GetReplica().GetDrain() != nil && got.GetReplica().GetDrain().GetInFlight() == 0
	})
	if n := ended.Load(); n == 2*each+2 {
		t.Error("the replica was empty when all answers were written: nothing moved")
	}
	all.Wait()
	moved := 0.0
	for _, r := range routers {
		moved += metric(t, r, `kvpilot_router_resumes_total{result="moved"}`)
		for _, cause := range []string{"network", "replica", "rank"} {
			if n := metric(t, r, `kvpilot_router_faults_total{cause="`+cause+`"}`); n != 0 {
				t.Errorf("%v faults of cause %s are counted", n, cause)
			}
		}
	}
	if moved == 0 {
		t.Error("no stream moved")
	}
	got, err := replicasOf(t, first).Get(t.Context(), &kvpilotv1.GetRequest{ReplicaId: leaving})
	if err != nil || got.GetReplica().GetBreaker() != kvpilotv1.BreakerState_BREAKER_STATE_CLOSED {
		t.Errorf("the move counts against the replica: %v, %v", got, err)
	}
}
