// Package instruments makes the OpenTelemetry instruments of a package from the structs that declare them.
//
// An instrument is an exported field with tags:
//
//	type metrics struct {
//		Gaps    metric.Int64Counter      `metric:"kvpilot.kvevents.gaps" unit:"{gap}" help:"Gaps found in the numbering of batches."`
//		Replays instruments.Keyed[Why]   `metric:"kvpilot.kvevents.replays" unit:"{replay}" by:"why" help:"Replays requested, by reason."`
//		Lag     metric.Float64Histogram  `metric:"kvpilot.kvevents.lag" unit:"s" bounds:"0.001 0.01 0.1" help:"Time until a batch was applied."`
//	}
//
// metric is the name, unit and help say what it counts, by lists its labels, bounds the upper bounds of a histogram's buckets, values the values of the
// label of a Keyed counter of strings. docs/metrics.md is made from these tags. A counter without labels exists at zero from the start, so
// that an alert sees the first increase; so does a Keyed counter for the keys that it is given.
//
// A name that OpenTelemetry rejects, or a field that cannot be an instrument, is a bug: Declare panics. A Set is used by one goroutine; the
// instruments are safe for concurrent use.
package instruments

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Instrument is a declared instrument.
type Instrument struct {
	Name, Unit, Help string
	// Kind is counter, gauge or histogram.
	Kind string

	by, values []string
	bounds     []float64
}

// catalog is a meter provider that is given the instruments as they are declared.
type catalog interface{ Declared(Instrument) }

// Set has the instruments of one package.
type Set struct {
	meter    metric.Meter
	catalog  catalog // nil: none
	observed []metric.Observable
}

// Declare makes the instruments of the structs that the pointers point to, for the package at path below the module's root, for example
// "server/fleet/kvindex". A nil provider makes instruments that do nothing.
func Declare(provider metric.MeterProvider, path string, structs ...any) *Set {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	s := &Set{meter: provider.Meter("github.com/kvpilot/kvpilot/" + path)}
	s.catalog, _ = provider.(catalog)
	s.Declare(structs...)
	return s
}

// Declare makes the instruments of further structs.
func (s *Set) Declare(structs ...any) {
	for _, one := range structs {
		s.fill(reflect.ValueOf(one).Elem())
	}
}

// Observe calls read at each collection, to report the observed instruments that were declared since the last Observe.
func (s *Set) Observe(read func(o metric.Observer)) {
	must(s.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		read(o)
		return nil
	}, s.observed...))
	s.observed = nil
}

// fill makes the instruments of a struct, and of the structs in it.
func (s *Set) fill(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch _, declared := f.Tag.Lookup("metric"); {
		case declared:
			s.make(v.Field(i).Addr().Interface(), read(f.Tag))
		case f.Type.Kind() == reflect.Struct && (f.IsExported() || f.Anonymous):
			s.fill(v.Field(i))
		}
	}
}

// read reads a field's tags.
func read(tag reflect.StructTag) Instrument {
	d := Instrument{Name: tag.Get("metric"), Unit: tag.Get("unit"), Help: tag.Get("help"), by: strings.Fields(tag.Get("by")), values: strings.Fields(tag.Get("values"))}
	for _, bound := range strings.Fields(tag.Get("bounds")) {
		d.bounds = append(d.bounds, must(strconv.ParseFloat(bound, 64)))
	}
	return d
}

// make makes the instrument at a field's address.
func (s *Set) make(at any, d Instrument) {
	about := both{metric.WithUnit(d.Unit), metric.WithDescription(d.Help)}
	d.Kind = "gauge"
	switch to := at.(type) {
	case *metric.Int64Counter:
		d.Kind = "counter"
		*to = must(s.meter.Int64Counter(d.Name, about.unit, about.help))
		if len(d.by) == 0 {
			(*to).Add(context.Background(), 0)
		}
	case *metric.Int64UpDownCounter:
		*to = must(s.meter.Int64UpDownCounter(d.Name, about.unit, about.help))
		(*to).Add(context.Background(), 0)
	case *metric.Float64Histogram:
		d.Kind = "histogram"
		*to = must(s.meter.Float64Histogram(d.Name, about.unit, about.help, metric.WithExplicitBucketBoundaries(d.bounds...)))
	case *metric.Int64Histogram:
		d.Kind = "histogram"
		*to = must(s.meter.Int64Histogram(d.Name, about.unit, about.help, metric.WithExplicitBucketBoundaries(d.bounds...)))
	case *metric.Int64ObservableGauge:
		*to = must(s.meter.Int64ObservableGauge(d.Name, about.unit, about.help))
		s.observed = append(s.observed, *to)
	case *metric.Float64ObservableGauge:
		*to = must(s.meter.Float64ObservableGauge(d.Name, about.unit, about.help))
		s.observed = append(s.observed, *to)
	case *metric.Int64ObservableCounter:
		d.Kind = "counter"
		*to = must(s.meter.Int64ObservableCounter(d.Name, about.unit, about.help))
		s.observed = append(s.observed, *to)
	case *metric.Float64ObservableCounter:
		d.Kind = "counter"
		*to = must(s.meter.Float64ObservableCounter(d.Name, about.unit, about.help))
		s.observed = append(s.observed, *to)
	case counter:
		d.Kind = "counter"
		to.declare(s, d)
	default:
		panic(fmt.Sprintf("instruments: %s: a %T is no instrument", d.Name, at))
	}
	if s.catalog != nil {
		s.catalog.Declared(d)
	}
}

// both are the options that every instrument has.
type both struct{ unit, help metric.InstrumentOption }

// counter is a counter of this package.
type counter interface{ declare(*Set, Instrument) }

// Label is one label, made once and used for many measurements.
func Label(key, value string) metric.MeasurementOption {
	return Labels(attribute.String(key, value))
}

// Labels is a set of labels, made once and used for many measurements.
func Labels(labels ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(labels...))
}

// Rank labels a measurement with one rank of a replica.
func Rank(replica string, index int) metric.MeasurementOption {
	return Labels(attribute.String("replica", replica), attribute.Int("rank", index))
}

func must[T any](made T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("instruments: %v", err))
	}
	return made
}
