package resume

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// kinds are requests that are continued as text, by token ids, and by a repetition.
var kinds = []string{
	`"messages":[{"role":"user","content":"Tell me about %d"}]`,
	`"messages":[{"role":"user","content":"Tell me about %d"}],"stop":["zzz"]`,
	`"messages":[{"role":"user","content":"About %d: use get_weather"}],` + weather,
	`"messages":[{"role":"user","content":"About %d: think first"}]`,
	`"messages":[{"role":"user","content":"About %d: think first, then use get_weather"}],"tool_choice":"auto",` + weather,
	`"messages":[{"role":"user","content":"Tell me about %d"}],"presence_penalty":0.5`,
	`"messages":[{"role":"user","content":"Tell me about %d"}],"n":2,"logprobs":true`,
	`"messages":[{"role":"user","content":"About %d"}],"tool_choice":"required",` + weather,
}

// Of many streams none is lost and none differs while replica after replica is killed.
func TestManyStreamsWhileReplicasDie(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute")
	}
	const streams, atOnce, bodies, perKill = 2000, 100, 40, 150
	s := stack.Start(t, stack.Options{Replicas: 6, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer, c.Core.Timing.Speed = "0.33.0", true, 30, 1
	}, Configure: func(c *config.Config) {
		c.Router.ResumeStreams = 8 // on a busy machine a stream lasts long enough to meet several kills
	}})
	transport := http.DefaultTransport.(*http.Transport)
	idle := transport.MaxIdleConnsPerHost
	transport.MaxIdleConnsPerHost = atOnce
	t.Cleanup(func() { transport.MaxIdleConnsPerHost = idle; http.DefaultClient.CloseIdleConnections() })
	body := func(i int) string {
		i %= bodies
		return `{"model":"sim","temperature":0,"stream":true,"max_tokens":80,"stream_options":{"include_usage":true},` + fmt.Sprintf(kinds[i%len(kinds)], i) + `}`
	}
	var want [bodies]string
	var all sync.WaitGroup
	for i := range want {
		all.Go(func() {
			a := ask(t, "http://"+s.HTTP, body(i))
			if want[i] = a.text(); !a.done || a.failure != "" || a.finish == "" {
				t.Errorf("undisturbed: %s", want[i])
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	var next, lost, different atomic.Int64
	due := make(chan struct{}, streams/perKill+1) // by streams, not by time: a stream meets as many kills on a busy machine as on a quiet one
	for range atOnce {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < streams; i = int(next.Add(1)) - 1 {
				if i%perKill == perKill/2 {
					due <- struct{}{}
				}
				switch got := ask(t, "http://"+s.HTTP, body(i)); {
				case !got.done || got.failure != "":
					lost.Add(1)
					t.Errorf("stream %d was lost: %s", i, got.text())
				case got.text() != want[i%bodies]:
					different.Add(1)
					t.Errorf("stream %d: the client has\n%s\nwant\n%s", i, got.text(), want[i%bodies])
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	kills := 0
	for ; ; kills++ {
		select {
		case <-ended:
			t.Logf("%d streams, %d kills: %d lost, %d different; resumed %d times", streams, kills, lost.Load(), different.Load(), resumed(t, s))
			for _, kind := range []string{"chat", "parsed", "repeated"} {
				if counted(t, s, "kvpilot_router_interrupted_total", "kind", kind) == 0 {
					t.Errorf("no stream of the kind %s met a kill: the test shows nothing of it", kind)
				}
			}
			if n := counted(t, s, "kvpilot_router_interrupted_total", "result", "lost"); n != 0 {
				t.Errorf("%d streams are counted as lost", n)
				for _, result := range []string{"limit", "budget", "poison", "seam", "diverged", "ineligible"} {
					t.Logf("%s: %d", result, counted(t, s, "kvpilot_router_resumes_total", "result", result))
				}
			}
			return
		case <-due:
			resp, err := http.Post(s.Replicas[kills%len(s.Replicas)]+"/sim/restart", "application/json", strings.NewReader(`{"down":"500ms"}`))
			if err != nil {
				t.Error(err)
				continue
			}
			resp.Body.Close()
		}
	}
}
