package quota

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// generous is a fleet whose owner has all that is asked for.
type generous struct {
	granted grants.Amounts
	asked   int
}

func (f *generous) Ask(_ string, r grants.Report) (grants.Grant, error) {
	f.asked++
	f.granted = f.granted.Plus(r.Need).Plus(r.Waiting).Plus(r.More)
	return grants.Grant{Epoch: r.Epoch, Sequence: r.Sequence, Granted: f.granted, Holding: r.Holding.Plus(r.NeedHolding).Plus(r.MoreHolding)}, nil
}

func (*generous) Hurry(string, string)    {}
func (*generous) Patience() time.Duration { return time.Second }

// BenchmarkInAFleet is BenchmarkRequest at the owner of the account, and at a router that has a lease of it.
func BenchmarkInAFleet(b *testing.B) {
	for name, view := range map[string]*grants.View{
		"owner": grants.NewView("00000001", []grants.Member{{ID: "00000001"}, {ID: "00000002", Fitness: grants.Leaving}}, 2, 0),
		"lease": grants.NewView("00000001", []grants.Member{{ID: "00000001", Fitness: grants.Leaving}, {ID: "00000002"}}, 2, 0),
	} {
		b.Run(name, func(b *testing.B) {
			l := limiter(b, Config{Default: {RequestsPerSecond: 1 << 39, TokensPerMinute: 1 << 40, InFlight: 1 << 30}})
			fleet := &generous{}
			l.Join(fleet)
			l.SetView(view)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				g := &Grant{}
				if l.Admit(g, "a") != nil || l.Book(g, Ask{Prompt: 1000, Generates: true}) != nil {
					b.Fatal("refused")
				}
				l.Settle(g, Usage{Charge: ChargeUsage, Prompt: 1000, Output: 10})
				n++
			}
			b.ReportMetric(float64(fleet.asked)/float64(n), "questions/op")
		})
	}
}
