package members

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// meter registers the instruments, which read the list.
func (m *Members) meter(p metric.MeterProvider) {
	s := instruments.New(p, "server/peers/members")
	members := s.ObservedGauge("kvpilot.peers.members", "{router}", "Routers of the fleet, this one included, by state: alive, stranger (another major wire version), dead (in the last ten minutes, without leaving).")
	versions := s.ObservedGauge("kvpilot.peers.wire_versions", "{version}", "Major wire versions of the living routers: more than one is an update in progress.")
	states := []State{Alive, Stranger, Dead}
	labels := make([]metric.MeasurementOption, len(states))
	for i, state := range states {
		labels[i] = instruments.Label("state", state.String())
	}
	s.Observe(func(o metric.Observer) {
		counts := make([]int64, len(states))
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
			o.ObserveInt64(members, n, labels[i])
		}
		o.ObserveInt64(versions, int64(len(majors)))
	})
}
