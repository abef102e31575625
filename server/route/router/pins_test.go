package router_test

import (
	"context"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/pins"
)

// otherRouters know where one response is stored.
type otherRouters struct {
	pins   *pins.Pins
	tenant string
	at     replica.ID
	asked  []string
	made   []string
}

func (o *otherRouters) PinMade(tenant, response string, id replica.ID) {
	o.made = append(o.made, tenant+" "+response+" "+string(id))
}

func (o *otherRouters) FindPin(_ context.Context, response string) bool {
	if o.asked = append(o.asked, response); response != "resp_0" {
		return false
	}
	o.pins.Put(o.tenant, response, o.at)
	return true
}

// A response that another router of the fleet saw made is continued where it is stored, by its owner alone.
func TestAPinOfAnotherRouterCounts(t *testing.T) {
	for _, at := range []replica.ID{"r0", "r1"} {
		others := &otherRouters{tenant: "team-a", at: at}
		f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
			others.pins = p.Pins
			p.Fleet = others
		})
		f.script(text(200, `{"id":"resp_1","object":"response"}`))
		ask := func(tenant, previous string) (*client, error) {
			c := &client{}
			call := chat(`{"model":"m","input":"more","previous_response_id":"` + previous + `"}`)
			call.Route, call.Path, call.Tenant = openai.RouteResponses, "/v1/responses", tenant
			return c, f.router.Serve(t.Context(), call, c)
		}
		if _, err := ask("team-b", "resp_0"); apierror.From(err).HTTPStatus() != 404 {
			t.Errorf("another tenant's response: %v", err)
		}
		c, err := ask("team-a", "resp_0")
		must(t, err)
		if got := c.header.Get("X-Kvpilot-Replica"); got != string(at) || c.status != 200 {
			t.Errorf("%d from %s, want %s", c.status, got, at)
		}
		if want := "team-a resp_1 " + string(at); !slices.Contains(others.made, want) {
			t.Errorf("pins made: %q, want %q", others.made, want)
		}
		if _, err := ask("team-a", "unknown"); apierror.From(err).HTTPStatus() != 404 {
			t.Errorf("a response that nobody has seen: %v", err)
		}
		if want := []string{"resp_0", "unknown"}; !slices.Equal(others.asked, want) {
			t.Errorf("asked for %q, want %q", others.asked, want)
		}
		f.settled()
	}
}
