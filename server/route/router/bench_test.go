package router_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// BenchmarkServe is a whole request to an engine on the loopback: what limits and salts add to it. Its time is mostly
// the engine's and the sockets'; the allocations are exact.
func BenchmarkServe(b *testing.B) {
	for _, with := range []string{"plain", "limits", "salt"} {
		b.Run(with, func(b *testing.B) {
			f := start(b, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				if with == "limits" {
					p.Limits = quota.New(plenty(), quota.Params{})
				}
			})
			r := f.router
			if with == "salt" {
				r = salted(b, f, saltKey, intake.UnsaltedRefuse)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Serve(b.Context(), chat(""), &client{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
