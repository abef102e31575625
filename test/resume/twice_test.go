package resume

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// A stream whose connection breaks at one of two replicas, and then at the other one, is continued at the first again.
func TestAStreamThatBreaksAtBothReplicas(t *testing.T) {
	stack.Aside(t)
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 60, 2
	}, Configure: func(c *config.Config) {
		c.Router.ResumeStreams = 8
		c.Upstream.Breaker.Failures, c.Upstream.Breaker.MinRequests = 0, 1_000_000
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for name, more := range map[string]string{
		"as text":      `"messages":[{"role":"user","content":"Tell me about rivers"}]`,
		"by token ids": `"messages":[{"role":"user","content":"About 3: think first, then use get_weather"}],` + weather,
		"repeated":     `"messages":[{"role":"user","content":"Tell me about lakes"}],"presence_penalty":0.5`,
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","temperature":0,"stream":true,"max_tokens":60,"stream_options":{"include_usage":true},` + more + `}`
			fault(t, s, `{}`)
			want := ask(t, "http://"+s.HTTP, body)
			if !want.done || want.events < 16 {
				t.Fatalf("undisturbed: %d events, %s", want.events, want.text())
			}
			before := resumed(t, s)
			at, times := want.events/4+1, 0
			if name == "repeated" { // each time from the beginning
				times = 1
			}
			fault(t, s, fmt.Sprintf(`{"paths":["/v1/chat/completions","/v1/completions","/inference"],"die_after":%d,"times":%d}`, at, times))
			if got := ask(t, "http://"+s.HTTP, body); got.text() != want.text() {
				t.Errorf("the client has\n%s\nwant\n%s", got.text(), want.text())
			}
			if n := resumed(t, s) - before; n < 2 {
				t.Errorf("the stream was resumed %d times, want two", n)
			}
		})
	}
}
