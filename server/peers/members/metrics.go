package members

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics read the list.
type metrics struct {
	Members  metric.Int64ObservableGauge `metric:"kvpilot.peers.members" unit:"{router}" by:"state" help:"Routers of the fleet, this one included, by state: alive, stranger (another major wire version), dead (in the last ten minutes, without leaving)."`
	Versions metric.Int64ObservableGauge `metric:"kvpilot.peers.wire_versions" unit:"{version}" help:"Major wire versions of the living routers: more than one is an update in progress."`
}

// observe has the metrics read.
func (m *Members) observe(p metric.MeterProvider) {
	var shown metrics
	instruments.Declare(p, "server/peers/members", &shown).Observe(func(o metric.Observer) {
		var counts [Dead + 1]int64
		m.mu.Lock()
		counts[Alive] = 1
		majors := map[uint32]bool{m.self.WireMajor: true}
		for _, other := range m.others {
			counts[other.State]++
			if other.State != Dead {
				majors[other.WireMajor] = true
			}
		}
		m.mu.Unlock()
		for i, n := range counts {
			o.ObserveInt64(shown.Members, n, instruments.Label("state", State(i).String()))
		}
		o.ObserveInt64(shown.Versions, int64(len(majors)))
	})
}
