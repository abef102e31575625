package registry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// maxSeries bounds the replicas that have series of their own. The SDK would join those above 2,000 into one.
const maxSeries = 1024

type metrics struct {
	probes, states, passive, restarts, leasesExpired, sourceErrors, labelErrors metric.Int64Counter

	ok, failed, refused metric.MeasurementOption
	byState             []metric.MeasurementOption
}

func newMetrics(provider metric.MeterProvider, out *published, leftOut *leftOut) *metrics {
	s := instruments.New(provider, "server/fleet/registry")
	m := &metrics{ok: instruments.Label("outcome", "ok"), failed: instruments.Label("outcome", "failed"), refused: instruments.Label("outcome", "refused")}
	for state := replica.StateStarting; state <= replica.StateUnhealthy; state++ {
		m.byState = append(m.byState, instruments.Label("state", state.String()))
	}
	m.probes = s.CounterBy("kvpilot.registry.probes", "{probe}", "Probes of replicas, by outcome: ok, failed, refused (the port is closed).", m.ok, m.failed, m.refused)
	m.states = s.CounterBy("kvpilot.registry.state_changes", "{change}", "Changes of replicas' states, by the new state.", m.byState...)
	m.passive = s.Counter("kvpilot.registry.reported_failures", "{failure}", "Failed requests that caused an immediate probe.")
	m.restarts = s.Counter("kvpilot.registry.restarts", "{restart}", "Engine restarts noticed behind a replica.")
	m.leasesExpired = s.Counter("kvpilot.registry.leases_expired", "{lease}", "Registrations that expired because they were not renewed.")
	m.sourceErrors = s.CounterBy("kvpilot.registry.source_errors", "{error}", "Failed reads of a source, after which the old replicas were kept, by source.")
	m.labelErrors = s.CounterBy("kvpilot.registry.label_errors", "{value}", "Labels, annotations and variables of pods that could not be used, by source.")

	replicas := s.ObservedGauge("kvpilot.registry.replicas", "{replica}", "Replicas, by state.")
	states := s.ObservedGauge("kvpilot.registry.replica_state", "{replica}", "1 for each replica's state: starting, ready, draining, unhealthy. Of more than 1024 replicas some ready ones are left out.")
	draining := s.ObservedGauge("kvpilot.registry.draining", "{replica}", "1 for each replica that drains, by replica.")
	left := s.ObservedGauge("kvpilot.registry.endpoints_left_out", "{endpoint}", "Endpoints of a Service or DNS name that are no replicas, by source and reason: address (refused), limit (above max_endpoints), invalid.")
	s.Observe(func(o metric.Observer) {
		leftOut.observe(context.Background(), func(n int64, labels metric.MeasurementOption) { o.ObserveInt64(left, n, labels) })
		counts := make([]int64, len(m.byState))
		snapshot := out.now()
		named := observeStates(o, states, snapshot.Replicas, false, 0)
		observeStates(o, states, snapshot.Replicas, true, named)
		for _, r := range snapshot.Replicas {
			counts[r.State]++
			if r.State == replica.StateDraining {
				o.ObserveInt64(draining, 1, instruments.Label("replica", string(r.ID)))
			}
		}
		for state, labels := range m.byState {
			o.ObserveInt64(replicas, counts[state], labels)
		}
	})
	return m
}

// observeStates reports the state of the replicas that are ready, or of all others, and returns how many replicas have a series now.
func observeStates(o metric.Observer, states metric.Int64Observable, replicas []*replica.Replica, ready bool, named int) int {
	for _, r := range replicas {
		if (r.State == replica.StateReady) != ready || named == maxSeries {
			continue
		}
		o.ObserveInt64(states, 1, instruments.Labels(attribute.String("replica", string(r.ID)), attribute.String("state", r.State.String())))
		named++
	}
	return named
}

func (m *metrics) probed(ctx context.Context, res result) {
	outcome := m.failed
	switch {
	case res.err == nil:
		outcome = m.ok
	case res.refused:
		outcome = m.refused
	}
	m.probes.Add(ctx, 1, outcome)
}

func (m *metrics) stateChanged(ctx context.Context, s replica.State) {
	m.states.Add(ctx, 1, m.byState[s])
}

func (m *metrics) sourceFailed(ctx context.Context, source string) {
	m.sourceErrors.Add(ctx, 1, instruments.Label("source", source))
}

func (m *metrics) labelRejected(source string) {
	m.labelErrors.Add(context.Background(), 1, instruments.Label("source", source))
}
