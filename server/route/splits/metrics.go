package splits

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
)

const ns = "kvpilot.splits."

// mostSeries bounds the sides with series of their own.
const mostSeries = 64

// sideKey labels a measurement.
type sideKey struct{ model, side, result string }

type metrics struct {
	requests  metric.Int64Counter
	first     metric.Float64Histogram
	whole     metric.Float64Histogram
	stepBacks metric.Int64Counter
	back      metric.Int64ObservableGauge
	names     *labels.Names // of sides with series of their own
	sets      labels.Sets[sideKey]
}

func newMetrics(p metric.MeterProvider, of *Splits) *metrics {
	s := instruments.New(p, "server/route/splits")
	slow := []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	m := &metrics{
		names:     labels.NewNames(mostSeries),
		requests:  s.CounterBy(ns+"requests", "{request}", "Ended requests for models that are split, by model, side and result (ok, failed). The first 64 sides have series of their own; the others share those of other."),
		first:     s.Histogram(ns+"ttft", "s", "Time to the first token of streams, by model and side of the split.", slow...),
		whole:     s.Histogram(ns+"answer.duration", "s", "Time to the end of answers that did not fail, by model and side of the split.", slow...),
		stepBacks: s.CounterBy(ns+"step_backs", "{step}", "Sides that got no further requests, by model, side and by (rule, caller)."),
		back:      s.ObservedGauge(ns+"stepped_back", "{side}", "Sides of splits that get no requests because they were sent back."),
	}
	s.Observe(func(o metric.Observer) {
		o.ObserveInt64(m.back, int64(of.steppedBack()))
	})
	return m
}

// label are the labels of a side's measurements.
func (m *metrics) label(model, side, result string) metric.MeasurementOption {
	if m.names.Of(model+"\x00"+side) == labels.Other {
		model, side = labels.Other, labels.Other
	}
	return m.sets.Of(sideKey{model, side, result}, func(k sideKey) []attribute.KeyValue {
		list := []attribute.KeyValue{attribute.String("model", k.model), attribute.String("side", k.side)}
		if k.result != "" {
			list = append(list, attribute.String("result", k.result))
		}
		return list
	})
}

func (m *metrics) ended(a *Assignment, e End) {
	result := "ok"
	if e.Failed {
		result = "failed"
	}
	ctx := context.Background()
	m.requests.Add(ctx, 1, m.label(a.Split, a.Side, result))
	if e.Failed {
		return
	}
	plain := m.label(a.Split, a.Side, "")
	if e.FirstToken > 0 {
		m.first.Record(ctx, e.FirstToken.Seconds(), plain)
	}
	m.whole.Record(ctx, e.Took.Seconds(), plain)
}

func (m *metrics) steppedBack(model, side string, byRule bool) {
	by := "caller"
	if byRule {
		by = actorRule
	}
	m.stepBacks.Add(context.Background(), 1, m.label(model, side, ""), metric.WithAttributes(attribute.String("by", by)))
}
