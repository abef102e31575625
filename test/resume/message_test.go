package resume

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// sampled are messages that are drawn, with what they are continued by.
var sampled = map[string]string{
	"text":                      `"max_tokens":40,"messages":[{"role":"user","content":"Tell me about %d"}]`,
	"system, several turns":     `"max_tokens":40,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":[{"type":"text","text":"Hello"}]},{"role":"user","content":[{"type":"text","text":"About %d"}]}],"temperature":0.8,"top_p":0.9,"metadata":{"user_id":"a"}`,
	"a thought":                 `"max_tokens":90,"messages":[{"role":"user","content":"About %d: think first"}],"thinking":{"type":"adaptive"}`,
	"a call":                    `"max_tokens":90,"messages":[{"role":"user","content":"About %d: use get_weather"}],"temperature":1,` + messageTools,
	"a thought and a call":      `"max_tokens":90,"messages":[{"role":"user","content":"About %d: think first, then use get_weather"}],"tool_choice":{"type":"auto"},` + messageTools,
	"tools that are not called": `"max_tokens":40,"messages":[{"role":"user","content":"Tell me about %d"}],` + messageTools,
	"a stop sequence":           `"max_tokens":60,"messages":[{"role":"user","content":"Tell me about %d"}],"stop_sequences":["zzz"]`,
}

// message asks for a message, with a header or without, and reads it.
func message(t *testing.T, url, body, resume string) *named {
	t.Helper()
	n := &named{ids: map[string]int{}}
	readLines(t, url+"/v1/messages", body, resume, func(h http.Header) { n.replica = h.Get("X-Kvpilot-Replica") }, func(line string) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			n.event(t, data)
		} else if line != "" && !strings.HasPrefix(line, "event: ") && !strings.HasPrefix(line, ":") {
			n.steps = append(n.steps, line)
		}
	})
	return n
}

// A sampled message is one stream wherever its replica dies: the events are those of the engine, and the rest is written from exactly the tokens of what the client has.
func TestASampledMessageIsContinued(t *testing.T) {
	t.Parallel()
	for name, more := range sampled {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := started(t, "0.33.0", true)
			url := "http://" + s.HTTP
			body := `{"model":"sim","stream":true,` + fmt.Sprintf(more, 1) + `}`
			engines, want := message(t, url, body, "off"), message(t, url, body, "")
			if !engines.over || engines.text() != want.text() {
				t.Fatalf("the engine's events are\n%s\nthe router's\n%s", engines.text(), want.text())
			}
			resumes := cuts(t, s, want.events, `"return_token_ids":true`, func(at int) string {
				got := message(t, url, body, "")
				if got.text() != want.text() {
					t.Fatalf("cut after %d events, the client has\n%s\nwant\n%s", at, got.text(), want.text())
				}
				return got.replica
			})
			t.Logf("%d of %d cuts met a stream", resumes, want.events-1)
			if resumes == 0 {
				t.Error("no stream was resumed")
			}
			if n := counted(t, s, "kvpilot_router_interrupted_total", "result", "lost"); n != 0 {
				t.Errorf("%d streams are counted as lost", n)
			}
			if counted(t, s, "kvpilot_router_interrupted_total", "kind", "messages") == 0 {
				t.Error("no stream of messages is counted")
			}
		})
	}
}

// A sampled message moves from a replica that drains.
func TestASampledMessageMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	stack.Aside(t)
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 40, 1
	}, Configure: func(c *config.Config) { c.Chooser.Policy = "round-robin" }})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	url := "http://" + s.HTTP
	for name, more := range sampled {
		if name == "a stop sequence" { // a replica is not left while its text is held back
			continue
		}
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","stream":true,` + fmt.Sprintf(more, 2) + `}`
			want, before, left := listen(t, url, "/v1/messages", body), results(t, s, "moved"), ""
			got := listenTo(t, url, "/v1/messages", body, func(events int, replica string) {
				if events == 7 {
					left = replica
					drain(t, s, replica, "drain")
				}
			})
			if !want.over || got.text() != want.text() {
				t.Errorf("the client has\n%s\nwant\n%s", got.text(), want.text())
			}
			if results(t, s, "moved") == before {
				t.Error("no stream moved")
			}
			drain(t, s, left, "undrain")
		})
	}
}

// A sampled message leaves a replica that hangs.
func TestASampledMessageLeavesAReplicaThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for streams that hang")
	}
	stack.Aside(t)
	s := stack.Start(t, stack.Options{Replicas: 3, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 40, 1
	}, Configure: func(c *config.Config) { c.Chooser.Policy = "round-robin" }})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	url := "http://" + s.HTTP
	for _, name := range []string{"text", "a thought and a call"} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","stream":true,` + fmt.Sprintf(sampled[name], 3) + `}`
			want, before, left := listen(t, url, "/v1/messages", body), resumed(t, s), ""
			got := listenTo(t, url, "/v1/messages", body, func(events int, replica string) {
				if events == 8 {
					left = urlOf(t, s, replica)
					faultAt(t, []string{left}, `{"stall":true,"hang":true}`)
				}
			})
			if !want.over || got.text() != want.text() {
				t.Errorf("the client has\n%s\nwant\n%s", got.text(), want.text())
			}
			if resumed(t, s) == before {
				t.Error("no stream was resumed")
			}
			faultAt(t, []string{left}, `{}`)
		})
	}
}

// A message is sent as it is where its translation is not certain, and by an engine of another version; the client gets the engine's own answer.
func TestAMessageThatIsSentAsItIs(t *testing.T) {
	for _, version := range []string{"0.32.0", "0.33.0"} {
		s := started(t, version, true)
		for name, more := range map[string]string{
			"a tool that must be called":    `"max_tokens":40,"messages":[{"role":"user","content":"hi"}],"tool_choice":{"type":"any"},` + messageTools,
			"thinking with a budget":        `"max_tokens":2000,"messages":[{"role":"user","content":"hi"}],"thinking":{"type":"enabled","budget_tokens":1024}`,
			"thinking that is turned off":   `"max_tokens":40,"messages":[{"role":"user","content":"hi"}],"thinking":{"type":"disabled"}`,
			"a system message in between":   `"max_tokens":40,"messages":[{"role":"user","content":"hi"},{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]`,
			"a schema":                      `"max_tokens":40,"messages":[{"role":"user","content":"hi"}],"output_config":{"format":{"type":"json_schema","schema":{}}}`,
			"a member that is not known":    `"max_tokens":40,"messages":[{"role":"user","content":"hi"}],"a_field_of_tomorrow":true`,
			"no messages, which is refused": `"max_tokens":40,"messages":[]`,
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				body := `{"model":"sim","stream":true,` + more + `}`
				engines, got := message(t, "http://"+s.HTTP, body, "off"), message(t, "http://"+s.HTTP, body, "")
				if got.text() == "" || got.text() != engines.text() {
					t.Errorf("the client has\n%s\nwant\n%s", got.text(), engines.text())
				}
			})
		}
	}
}
