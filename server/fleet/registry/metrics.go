package registry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// maxSeries bounds the m.Replicas that have series of their own. The SDK would join those above 2,000 into one.
const maxSeries = 1024

type metrics struct {
	Probes        instruments.Keyed[string]        `metric:"kvpilot.registry.probes" unit:"{probe}" by:"outcome" values:"ok failed refused" help:"Probes of replicas, by outcome: ok, failed, refused (the port is closed)."`
	Changes       instruments.Keyed[replica.State] `metric:"kvpilot.registry.state_changes" unit:"{change}" by:"state" help:"Changes of replicas' states, by the new state."`
	Passive       metric.Int64Counter              `metric:"kvpilot.registry.reported_failures" unit:"{failure}" help:"Failed requests that caused an immediate probe."`
	Restarts      metric.Int64Counter              `metric:"kvpilot.registry.restarts" unit:"{restart}" help:"Engine restarts noticed behind a replica."`
	LeasesExpired metric.Int64Counter              `metric:"kvpilot.registry.leases_expired" unit:"{lease}" help:"Registrations that expired because they were not renewed."`
	SourceErrors  metric.Int64Counter              `metric:"kvpilot.registry.source_errors" unit:"{error}" by:"source" help:"Failed reads of a source, after which the old replicas were kept, by source."`
	LabelErrors   metric.Int64Counter              `metric:"kvpilot.registry.label_errors" unit:"{value}" by:"source" help:"Labels, annotations and variables of pods that could not be used, by source."`

	Replicas metric.Int64ObservableGauge `metric:"kvpilot.registry.replicas" unit:"{replica}" by:"state" help:"Replicas, by state."`
	States   metric.Int64ObservableGauge `metric:"kvpilot.registry.replica_state" unit:"{replica}" by:"replica state" help:"1 for each replica's state: starting, ready, draining, unhealthy. Of more than 1024 replicas some ready ones are left out."`
	Draining metric.Int64ObservableGauge `metric:"kvpilot.registry.draining" unit:"{replica}" by:"replica" help:"1 for each replica that drains, by replica."`
	Left     metric.Int64ObservableGauge `metric:"kvpilot.registry.endpoints_left_out" unit:"{endpoint}" by:"source reason" help:"Endpoints of a Service or DNS name that are no replicas, by source and reason: address (refused), limit (above max_endpoints), invalid."`
}

func newMetrics(provider metric.MeterProvider, out *published, leftOut *leftOut) *metrics {
	m := &metrics{}
	s := instruments.Declare(provider, "server/fleet/registry", m)
	for state := replica.StateStarting; state <= replica.StateUnhealthy; state++ {
		m.Changes.Know(state)
	}
	s.Observe(func(o metric.Observer) {
		leftOut.observe(context.Background(), func(n int64, labels metric.MeasurementOption) { o.ObserveInt64(m.Left, n, labels) })
		var counts [replica.StateUnhealthy + 1]int64
		snapshot := out.now()
		named := observeStates(o, m.States, snapshot.Replicas, false, 0)
		observeStates(o, m.States, snapshot.Replicas, true, named)
		for _, r := range snapshot.Replicas {
			counts[r.State]++
			if r.State == replica.StateDraining {
				o.ObserveInt64(m.Draining, 1, instruments.Label("replica", string(r.ID)))
			}
		}
		for state, n := range counts {
			o.ObserveInt64(m.Replicas, n, m.Changes.Label(replica.State(state)))
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

func (m *metrics) probed(res result) {
	outcome := "failed"
	switch {
	case res.err == nil:
		outcome = "ok"
	case res.refused:
		outcome = "refused"
	}
	m.Probes.Add(outcome)
}

func (m *metrics) sourceFailed(ctx context.Context, source string) {
	m.SourceErrors.Add(ctx, 1, instruments.Label("source", source))
}

func (m *metrics) labelRejected(source string) {
	m.LabelErrors.Add(context.Background(), 1, instruments.Label("source", source))
}
