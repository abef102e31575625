package fleet

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/test/stack"
)

// canary shares the requests for the model between the two replicas, and steps the second one back when it is worse.
func canary(c *config.Config) {
	for i, side := range []string{"stable", "canary"} {
		c.Registry.Replicas[i].Labels = map[string]string{"side": side}
	}
	c.Splits.StepBack, c.Splits.StepBackSessions = true, 20
	c.Splits.Models = []splits.Split{{Model: "sim", Sides: []splits.Side{
		{Name: "stable", Labels: map[string]string{"side": "stable"}, Weight: 2}, {Name: "canary", Labels: map[string]string{"side": "canary"}, Weight: 1},
	}}}
}

// back is the canary at a router where it gets no requests; nil where it does.
func back(t *testing.T, r *stack.Stack) *kvpilotv1.SplitSide {
	t.Helper()
	out, err := kvpilotv1.NewRoutingServiceClient(dial(t, r)).ListSplits(t.Context(), &kvpilotv1.ListSplitsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range out.GetSplits() {
		for _, side := range s.GetSides() {
			if side.GetSide() == "canary" && side.GetSteppedBackSince() != nil {
				return side
			}
		}
	}
	return nil
}

// One router's requests find that a side is worse: all routers send it nothing from then on, those that had no request before included.
func TestASideThatStepsBackDoesSoAtAllRouters(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 3, canary)
	ask := func(at *stack.Stack, n int) int {
		t.Helper()
		resp, err := http.Post("http://"+at.HTTP+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"sim","prompt":"topic %d, at length","max_tokens":1}`, n)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	ask(routers[1], 10_000)
	resp, err := http.Post(routers[0].Replicas[1]+"/sim/faults", "application/json", strings.NewReader(`{"paths":["/v1/completions"],"status":500,"body":"broken"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for n := 0; back(t, routers[0]) == nil; n++ {
		if ask(routers[0], n); n == 1000 {
			t.Fatal("the canary fails and does not step back")
		}
	}
	for _, r := range routers[1:] {
		for n := range 20 {
			ask(r, 20_000+n)
		}
		eventually(t, "the other routers send the canary nothing", func() bool { return back(t, r) != nil })
		if side := back(t, r); !strings.Contains(side.GetSteppedBackBy(), "rule of router-0") {
			t.Errorf("it was sent back by %q", side.GetSteppedBackBy())
		}
	}
}
