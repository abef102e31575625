package router_test

import (
	"net/http"
	"slices"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// dies is a step that ends its engine: nothing listens there any more.
func (f *fleet) dies(_ http.ResponseWriter, r *http.Request) {
	for _, e := range f.engines {
		if e.srv.Listener.Addr().String() == r.Host {
			e.srv.Listener.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

// A stream that stops two replicas at the same token is taken to be the reason: no third one gets it.
func TestAStreamThatStopsTwoReplicasIsNotTriedOnAThird(t *testing.T) {
	for name, c := range map[string]struct {
		steps    func(f *fleet) []http.HandlerFunc
		requests int
		reason   apierror.Reason
		ends     []decision.End
	}{
		"at the same token": {
			func(f *fleet) []http.HandlerFunc {
				return []http.HandlerFunc{streaming(hello(), f.dies), streaming(nil, f.dies), whole(world())}
			}, 2, apierror.UpstreamStreamBroken, []decision.End{decision.EndResumed, decision.EndPoisoned},
		},
		"the second one in its prefill": {
			func(f *fleet) []http.HandlerFunc {
				return []http.HandlerFunc{streaming(hello(), f.dies), f.dies, whole(world())}
			}, 2, apierror.UpstreamStreamBroken, []decision.End{decision.EndResumed, decision.EndPoisoned},
		},
		"before the first one": {
			func(f *fleet) []http.HandlerFunc { return []http.HandlerFunc{f.dies, f.dies, whole(hello())} },
			2, apierror.UpstreamUnreachable, []decision.End{decision.EndMoved, decision.EndPoisoned},
		},
		"behind their heads": {
			func(f *fleet) []http.HandlerFunc {
				return []http.HandlerFunc{streaming(nil, f.dies), streaming(nil, f.dies), whole(hello())}
			}, 2, apierror.UpstreamStreamBroken, []decision.End{decision.EndMoved, decision.EndPoisoned},
		},
		"at different tokens": {
			func(f *fleet) []http.HandlerFunc {
				return []http.HandlerFunc{streaming(hello(), f.dies), streaming(world()[:1], f.dies), whole(world()[1:])}
			}, 3, apierror.Unspecified, []decision.End{decision.EndResumed, decision.EndResumed, decision.EndCompleted},
		},
		"one of them stands": {
			func(f *fleet) []http.HandlerFunc {
				return []http.HandlerFunc{streaming(hello(), f.dies), streaming(nil, cut), whole(world())}
			}, 3, apierror.Unspecified, []decision.End{decision.EndResumed, decision.EndResumed, decision.EndCompleted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			reader := sdk.NewManualReader()
			f := start(t, 4, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				p.Scope = scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))
			})
			f.resuming(2)
			f.inTurn(c.steps(f)...)
			to := &client{}
			err := f.router.Serve(t.Context(), chat(asking+"}"), to)
			if reasonOf(err) != c.reason || f.requests() != c.requests {
				t.Errorf("Serve() = %v after %d requests, want %v after %d", err, f.requests(), c.reason, c.requests)
			}
			if err == nil && to.body.String() != helloWorld() {
				t.Errorf("the client got\n%s", &to.body)
			}
			f.settled()
			if ends := f.ends(); !slices.Equal(ends, c.ends) {
				t.Errorf("the decisions ended %v, want %v", ends, c.ends)
			}
			want := int64(0)
			if c.reason != apierror.Unspecified {
				want = 1
			}
			if n := countsBy(t, reader, "kvpilot.router.resumes", "result")["poison"]; n != want {
				t.Errorf("%d streams were counted as poison, want %d", n, want)
			}
		})
	}
}
