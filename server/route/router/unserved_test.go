package router_test

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// Requests that no replica was chosen for are counted by their reason, unless the fault is their own, and so are questions.
func TestRequestsWithoutAReplicaAreCounted(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
		p.Unserved = func(reason string) {
			mu.Lock()
			defer mu.Unlock()
			got[reason]++
		}
		p.Limits = newAccount(t, quota.Config{"small": {RequestsPerSecond: 0.01}})
	})
	ctx := context.Background()
	serve := func(c *router.Call) { _ = f.router.Serve(ctx, c, &client{}) }
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
	question := &router.Question{Model: "m", Text: "a"}
	_, _ = f.router.Choose(ctx, question)
	question.DryRun = true
	_, _ = f.router.Choose(ctx, question)
	if want := (map[string]int{"RATE_LIMIT_EXCEEDED": 2, "NO_REPLICA": 2}); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
