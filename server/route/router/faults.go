package router

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// faults counts failures by cause and outcome.
type faults struct {
	counter metric.Int64Counter
	labels  map[[2]uint8]metric.MeasurementOption
}

func newFaults(s *instruments.Set) faults {
	f := faults{labels: map[[2]uint8]metric.MeasurementOption{}}
	var all []metric.MeasurementOption
	for _, v := range retry.Verdicts() {
		for _, c := range retry.Causes() {
			follows := v.Follows() && (c == retry.CauseRequest || c == retry.CauseTenant)
			if v.Cause() != c && !follows {
				continue
			}
			label := instruments.Labels(attribute.String("cause", c.String()), attribute.String("outcome", v.String()))
			f.labels[[2]uint8{uint8(c), uint8(v)}] = label
			all = append(all, label)
		}
	}
	f.counter = s.CounterBy(ns+"faults", "{attempt}", "Attempts that failed, by outcome and by the party at fault (cause): request (it fails wherever it is sent, or cannot be sent), caller, tenant (its requests fail on several replicas), router, network, replica, rank. Only the last three count against a replica.", all...)
	return f
}

func (f *faults) add(found retry.Finding) {
	if label, ok := f.labels[[2]uint8{uint8(found.Cause), uint8(found.Verdict)}]; ok {
		f.counter.Add(context.Background(), 1, label)
	}
}

// remembered adds the number of requests that are known to fail everywhere to the metrics.
func (m *metrics) remembered(p metric.MeterProvider, size func() int) {
	s := instruments.New(p, "server/route/router")
	gauge := s.ObservedGauge(ns+"poison", "{request}", "Requests of the last minutes that failed in the same way on two replicas: they are not retried, and count against no replica.")
	s.Observe(func(o metric.Observer) { o.ObserveInt64(gauge, int64(size())) })
}
