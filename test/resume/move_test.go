package resume

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// drain begins the drain of a replica, with move, or ends it.
func drain(t *testing.T, s *stack.Stack, replica, verb string) {
	t.Helper()
	body := `{}`
	if verb == "drain" {
		body = `{"move":true}`
	}
	resp, err := http.Post(fmt.Sprintf("http://%s/kvpilot/v1/replicas/%s:%s", s.HTTP, replica, verb), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s: %s %s", verb, replica, resp.Status, text)
	}
}

// A stream moves from a replica that is left in each of the three ways, and the client has the same answer.
func TestAStreamMovesInEachWay(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	stack.Aside(t)
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 40, 1
	}, Configure: func(c *config.Config) { c.Chooser.Policy = "round-robin" }})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for name, c := range map[string]struct {
		more  string
		at    int
		moves bool
	}{
		"plain text":                    {`"messages":[{"role":"user","content":"hello"}]`, 5, true},
		"a tool call, by token ids":     {`"messages":[{"role":"user","content":"use get_weather"}],` + weather, 6, true},
		"a thought, by token ids":       {`"messages":[{"role":"user","content":"think first"}]`, 8, true},
		"behind a thought":              {`"messages":[{"role":"user","content":"think first, then use get_weather"}],` + weather, 30, true},
		"a short answer, repeated":      {`"messages":[{"role":"user","content":"hello"}],"presence_penalty":0.5`, 5, true},
		"a long answer is not repeated": {`"messages":[{"role":"user","content":"hello"}],"presence_penalty":0.5,"min_tokens":150,"max_tokens":151`, 120, false},
		"several choices, repeated":     {`"messages":[{"role":"user","content":"hello"}],"n":2,"logprobs":true`, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","temperature":0,"stream":true,"max_tokens":200,"stream_options":{"include_usage":true},` + c.more + `}`
			want := ask(t, "http://"+s.HTTP, body)
			if !want.done || want.failure != "" || want.events < c.at+5 {
				t.Fatalf("undisturbed, %d events: %s", want.events, want.text())
			}
			before, left := results(t, s, "moved"), ""
			got := watch(t, "http://"+s.HTTP, body, func(events int, replica string) {
				if events == c.at {
					left = replica
					drain(t, s, replica, "drain")
				}
			})
			if got.text() != want.text() {
				t.Errorf("the client has\n%s\nwant\n%s", got.text(), want.text())
			}
			if n := results(t, s, "moved") - before; n != boolInt(c.moves) {
				t.Errorf("%d streams moved, want %d", n, boolInt(c.moves))
			}
			drain(t, s, left, "undrain")
		})
	}
	for _, lost := range []string{"diverged", "ineligible", "seam"} {
		if n := results(t, s, lost); n != 0 {
			t.Errorf("%d streams ended as %s", n, lost)
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A stream moves from a rank that drains, to another rank of the same replica or to another replica; the others of its replica take requests.
func TestAStreamMovesFromARankThatDrains(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	stack.Aside(t)
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed, c.Ranks = "0.33.0", true, 40, 1, 2
	}, Configure: func(c *config.Config) {
		c.Chooser.Policy = "round-robin"
		for i := range c.Registry.Replicas {
			c.Registry.Replicas[i].Ranks = 2
		}
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	body := `{"model":"sim","temperature":0,"stream":true,"max_tokens":200,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}`
	want := ask(t, "http://"+s.HTTP, body)
	for range 3 {
		before, replica, rank := results(t, s, "moved"), "", ""
		got := watchHead(t, "http://"+s.HTTP, body, func(events int, head http.Header) {
			if events == 5 {
				replica, rank = head.Get("X-Kvpilot-Replica"), rankOf(t, s, head)
				drainRank(t, s, replica, "drain", `{"move":true,"ranks":[`+rank+`]}`)
			}
		})
		if got.text() != want.text() {
			t.Errorf("the client has\n%s\nwant\n%s", got.text(), want.text())
		}
		if results(t, s, "moved") == before {
			t.Error("the stream has not moved")
		}
		others := map[string]int{}
		for range 9 {
			watchHead(t, "http://"+s.HTTP, strings.Replace(body, "200", "2", 1), func(events int, head http.Header) {
				if events == 1 {
					others[head.Get("X-Kvpilot-Replica")+" "+rankOf(t, s, head)]++
				}
			})
		}
		if others[replica+" "+rank] > 0 || len(others) != 3 {
			t.Errorf("rank %s of %s drains, and requests go to %v", rank, replica, others)
		}
		drainRank(t, s, replica, "undrain", `{"ranks":[`+rank+`]}`)
	}
	if n := counted(t, s, "kvpilot_router_interrupted_total", "cause", "drain"); n == 0 {
		t.Error("no stream is counted as moved for a drain")
	}
}

// drainRank sends the body of a drain, or of its end.
func drainRank(t *testing.T, s *stack.Stack, replica, verb, body string) {
	t.Helper()
	resp, err := http.Post(fmt.Sprintf("http://%s/kvpilot/v1/replicas/%s:%s", s.HTTP, replica, verb), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %v %s %s", verb, replica, err, resp.Status, text)
	}
}

// rankOf is the rank that an answer began on.
func rankOf(t *testing.T, s *stack.Stack, head http.Header) string {
	t.Helper()
	resp, err := http.Get("http://" + s.HTTP + "/kvpilot/v1/decisions/" + head.Get("X-Kvpilot-Decision"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Decisions []struct {
			Rank int `json:"rank"`
		} `json:"decisions"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || len(v.Decisions) == 0 {
		t.Fatalf("%s: %v, %v", resp.Status, err, v)
	}
	return fmt.Sprint(v.Decisions[0].Rank)
}
