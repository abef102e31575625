package router_test

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// counter counts each call by its name.
type counter func(what string)

func (c counter) Unserved(reason string) { c(reason) }
func (c counter) Retried()               { c("retried") }
func (c counter) Served(failed bool) {
	if failed {
		c("failed")
	} else {
		c("served")
	}
}

// A request that several replicas are tried for is counted once: as served when one of them answers, and as failed when its client gets
// the failure.
func TestARequestIsCountedOnceWhateverItsAttempts(t *testing.T) {
	unready, fine := text(http.StatusServiceUnavailable, `{}`), text(http.StatusOK, `{}`)
	for name, tc := range map[string]struct {
		script []http.HandlerFunc
		want   map[string]int
	}{
		"the first replica answers":  {[]http.HandlerFunc{fine}, map[string]int{"served": 1}},
		"the second replica answers": {[]http.HandlerFunc{unready, fine}, map[string]int{"served": 1, "retried": 1}},
		"no replica answers":         {[]http.HandlerFunc{unready, unready}, map[string]int{"failed": 1, "retried": 1}},
		"the engine refuses":         {[]http.HandlerFunc{text(http.StatusBadRequest, `{}`)}, map[string]int{"served": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			got := map[string]int{}
			f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				p.Attempts = 2
				p.Count = counter(func(what string) {
					mu.Lock()
					defer mu.Unlock()
					got[what]++
				})
			})
			var sent atomic.Int64
			f.script(func(w http.ResponseWriter, r *http.Request) { tc.script[sent.Add(1)-1](w, r) })
			_ = f.router.Serve(context.Background(), chat(""), &client{})
			mu.Lock()
			defer mu.Unlock()
			if !maps.Equal(got, tc.want) {
				t.Errorf("counted %v, want %v", got, tc.want)
			}
		})
	}
}

// Requests that no replica was chosen for are counted by their reason, unless the fault is their own, and so are questions.
func TestRequestsWithoutAReplicaAreCounted(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
		p.Count = counter(func(what string) {
			mu.Lock()
			defer mu.Unlock()
			if what != "served" && what != "failed" && what != "retried" {
				got[what]++
			}
		})
		p.Limits = newAccount(t, quota.Config{"small": {RequestsPerSecond: 0.01}})
	})
	ctx := context.Background()
	serve := func(c *intake.Call) { _ = f.router.Serve(ctx, c, &client{}) }
	serve(chat(""))
	f.script(text(http.StatusInternalServerError, `{}`))
	serve(chat("")) // a replica was chosen
	bad := chat("")
	bad.Body = []byte(`{`)
	serve(bad)
	if len(got) != 0 {
		t.Errorf("counted %v, want nothing", got)
	}
	for range 3 { // the first one passes
		over := chat("")
		over.Tenant = "small"
		serve(over)
	}
	must(t, f.params.Registry.Drain(ctx, "r0", registry.DrainOptions{Force: true}))
	serve(chat(""))
	question := &intake.Question{Model: "m", Input: intake.Input{Text: "a"}}
	_, _ = f.router.Choose(ctx, question)
	question.Booking = intake.DryRun
	_, _ = f.router.Choose(ctx, question)
	if want := (map[string]int{"RATE_LIMIT_EXCEEDED": 2, "NO_REPLICA": 2}); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
