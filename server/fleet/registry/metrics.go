package registry

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

type metrics struct {
	probes, states, passive, restarts, leasesExpired, sourceErrors metric.Int64Counter

	ok, failed, refused metric.AddOption
}

func newMetrics(provider metric.MeterProvider, r *Registry) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/fleet/registry")
	var errs []error
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
		return c
	}
	m := &metrics{
		probes:        counter("kvpilot.registry.probes", "{probe}", "Probes of replicas, by outcome: ok, failed, refused (the port is closed)."),
		states:        counter("kvpilot.registry.state_changes", "{change}", "Changes of replicas' states, by the new state."),
		passive:       counter("kvpilot.registry.reported_failures", "{failure}", "Failed requests that caused an immediate probe."),
		restarts:      counter("kvpilot.registry.restarts", "{restart}", "Engine restarts noticed behind a replica."),
		leasesExpired: counter("kvpilot.registry.leases_expired", "{lease}", "Registrations that expired because they were not renewed."),
		sourceErrors:  counter("kvpilot.registry.source_errors", "{error}", "Failed reads of a source, after which the old replicas were kept, by source."),
		ok:            outcome("ok"), failed: outcome("failed"), refused: outcome("refused"),
	}
	gauge, err := meter.Int64ObservableGauge("kvpilot.registry.replicas",
		metric.WithUnit("{replica}"), metric.WithDescription("Replicas, by state."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			observeStates(o, r.Snapshot())
			return nil
		}))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("register registry metrics: %w", err)
	}
	_ = gauge // observed by its callback
	ctx := context.Background()
	for _, o := range []metric.AddOption{m.ok, m.failed, m.refused} {
		m.probes.Add(ctx, 0, o)
	}
	for _, state := range allStates {
		m.states.Add(ctx, 0, stateOption(state))
	}
	for _, c := range []metric.Int64Counter{m.passive, m.restarts, m.leasesExpired} {
		c.Add(ctx, 0)
	}
	return m, nil
}

var allStates = [...]replica.State{replica.StateStarting, replica.StateReady, replica.StateDraining, replica.StateUnhealthy}

func outcome(name string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))
}

func stateOption(s replica.State) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("state", s.String())))
}

func observeStates(o metric.Int64Observer, s *Snapshot) {
	var counts [len(allStates)]int64
	for _, r := range s.Replicas {
		counts[r.State]++
	}
	for _, state := range allStates {
		o.Observe(counts[state], metric.WithAttributes(attribute.String("state", state.String())))
	}
}

func (m *metrics) probed(ctx context.Context, res result) {
	switch {
	case res.err == nil:
		m.probes.Add(ctx, 1, m.ok)
	case res.refused:
		m.probes.Add(ctx, 1, m.refused)
	default:
		m.probes.Add(ctx, 1, m.failed)
	}
}

func (m *metrics) sourceFailed(ctx context.Context, source string) {
	m.sourceErrors.Add(ctx, 1, metric.WithAttributes(attribute.String("source", source)))
}
