package resume

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	if stack.Race {
		_ = flag.Set("test.parallel", "4")
	}
	os.Exit(m.Run())
}

// urlOf is the base URL of a replica.
func urlOf(t *testing.T, s *stack.Stack, id string) string {
	t.Helper()
	resp, err := http.Get("http://" + s.HTTP + "/kvpilot/v1/replicas/" + id)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Replica struct {
			URL     string `json:"url"`
			BaseURL string `json:"base_url"`
		} `json:"replica"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || v.Replica.URL+v.Replica.BaseURL == "" {
		t.Fatalf("%s: %v, %+v", id, err, v)
	}
	return v.Replica.URL + v.Replica.BaseURL
}

// A stream continues elsewhere when its replica hangs: soon where the next one is likely to continue it, and otherwise when the replica is unhealthy.
func TestAStreamLeavesAReplicaThatHangs(t *testing.T) {
	stack.Aside(t)
	const long = 200
	for _, c := range []struct {
		name, more string
		tokens     int
		soon       bool
	}{
		{"plain text", `"messages":[{"role":"user","content":"hello"}]`, 80, true},
		{"a tool call, by token ids", `"messages":[{"role":"user","content":"use get_weather"}],` + weather, 80, true},
		{"a short answer, repeated", `"messages":[{"role":"user","content":"hello"}],"presence_penalty":0.5`, 80, true},
		{"a long answer, repeated", `"messages":[{"role":"user","content":"hello"}],"presence_penalty":0.5,"min_tokens":150`, long, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := stack.Start(t, stack.Options{Replicas: 3, Engine: func(c *enginesim.Config) {
				c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 40, 1
			}})
			t.Cleanup(http.DefaultClient.CloseIdleConnections)
			body := fmt.Sprintf(`{"model":"sim","temperature":0,"stream":true,"max_tokens":%d,"stream_options":{"include_usage":true},%s}`, c.tokens, c.more)
			want := ask(t, "http://"+s.HTTP, body)
			hung, at := "", 6
			if c.tokens == long {
				at = 120
				if testing.Short() {
					t.Skip("twenty seconds")
				}
			}
			var since time.Time
			got := watch(t, "http://"+s.HTTP, body, func(events int, replica string) {
				if events == at {
					hung, since = urlOf(t, s, replica), time.Now()
					faultAt(t, []string{hung}, `{"stall":true,"hang":true}`)
				}
			})
			if took := time.Since(since); took < 10*time.Second != c.soon {
				t.Errorf("the stream ended %s after its replica hung, soon: %v", took, c.soon)
			}
			if !want.done || got.text() != want.text() {
				t.Errorf("the client has\n%s\nwant\n%s", got.text(), want.text())
			}
			faultAt(t, []string{hung}, `{}`)
		})
	}
}
