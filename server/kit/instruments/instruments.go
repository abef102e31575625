// Package instruments makes the OpenTelemetry instruments of one package.
//
// Each metrics.go of the router declares its metrics through a Set, so that they are written the same way everywhere. The names
// are constants: a name that OpenTelemetry rejects is a bug, and the method that declares it panics. Series whose labels
// are known exist at zero from the start, so that an alert sees the first increase. A Set is used by one goroutine; the
// instruments that it returns are safe for concurrent use.
package instruments

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Set declares the instruments of one package.
type Set struct {
	meter    metric.Meter
	observed []metric.Observable
}

// New returns an empty Set for the package at path below the module's root, for example "server/fleet/kvindex". A nil provider
// makes instruments that do nothing.
func New(provider metric.MeterProvider, path string) *Set {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	return &Set{meter: provider.Meter("github.com/kvpilot/kvpilot/" + path)}
}

// Counter makes a counter without labels.
func (s *Set) Counter(name, unit, help string) metric.Int64Counter {
	c := s.CounterBy(name, unit, help)
	c.Add(context.Background(), 0)
	return c
}

// CounterBy makes a counter with labels. series are the label values known now.
func (s *Set) CounterBy(name, unit, help string, series ...metric.MeasurementOption) metric.Int64Counter {
	c := must(s.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(help)))
	for _, labels := range series {
		c.Add(context.Background(), 0, labels)
	}
	return c
}

// UpDownCounter makes a counter that also goes down.
func (s *Set) UpDownCounter(name, unit, help string) metric.Int64UpDownCounter {
	return must(s.meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help)))
}

// Histogram makes a histogram with these bucket boundaries.
func (s *Set) Histogram(name, unit, help string, bounds ...float64) metric.Float64Histogram {
	return must(s.meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(help), metric.WithExplicitBucketBoundaries(bounds...)))
}

// ObservedCounter makes a counter that the function given to Observe reads.
func (s *Set) ObservedCounter(name, unit, help string) metric.Int64ObservableCounter {
	c := must(s.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help)))
	s.observed = append(s.observed, c)
	return c
}

// ObservedGauge makes a gauge that the function given to Observe reads.
func (s *Set) ObservedGauge(name, unit, help string) metric.Int64ObservableGauge {
	g := must(s.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help)))
	s.observed = append(s.observed, g)
	return g
}

// ObservedFloat is ObservedGauge for fractions.
func (s *Set) ObservedFloat(name, unit, help string) metric.Float64ObservableGauge {
	g := must(s.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help)))
	s.observed = append(s.observed, g)
	return g
}

// Observe calls read at each collection, to report the observed instruments that were made before.
func (s *Set) Observe(read func(o metric.Observer)) {
	must(s.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		read(o)
		return nil
	}, s.observed...))
}

// Label is one label, made once and used for many measurements.
func Label(key, value string) metric.MeasurementOption {
	return Labels(attribute.String(key, value))
}

// Values is one label with each of its values.
func Values(key string, values ...string) []metric.MeasurementOption {
	list := make([]metric.MeasurementOption, len(values))
	for i, value := range values {
		list[i] = Label(key, value)
	}
	return list
}

// Labels is a set of labels, made once and used for many measurements.
func Labels(labels ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(labels...))
}

// Rank labels a measurement with one rank of a replica.
func Rank(replica string, index int) metric.MeasurementOption {
	return Labels(attribute.String("replica", replica), attribute.Int("rank", index))
}

func must[T any](instrument T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("instruments: %v", err))
	}
	return instrument
}
