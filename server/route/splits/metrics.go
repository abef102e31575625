package splits

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/labels"
)

// mostSeries bounds the sides with series of their own.
const mostSeries = 64

// sideKey labels a measurement.
type sideKey struct{ model, side, result string }

type metrics struct {
	Requests  metric.Int64Counter         `metric:"kvpilot.splits.requests" unit:"{request}" by:"model side result" help:"Ended requests for models that are split, by model, side and result (ok, failed). The first 64 sides have series of their own; the others share those of other."`
	First     metric.Float64Histogram     `metric:"kvpilot.splits.ttft" unit:"s" by:"model side" bounds:"0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300" help:"Time to the first token of streams, by model and side of the split."`
	Whole     metric.Float64Histogram     `metric:"kvpilot.splits.answer.duration" unit:"s" by:"model side" bounds:"0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300" help:"Time to the end of answers that did not fail, by model and side of the split."`
	StepBacks metric.Int64Counter         `metric:"kvpilot.splits.step_backs" unit:"{step}" by:"model side by" help:"Sides that got no further requests, by model, side and by (rule, caller)."`
	Back      metric.Int64ObservableGauge `metric:"kvpilot.splits.stepped_back" unit:"{side}" help:"Sides of splits that get no requests because they were sent back."`

	names *labels.Names // of sides with series of their own
	sets  labels.Sets[sideKey]
}

func newMetrics(p metric.MeterProvider, of *Splits) *metrics {
	m := &metrics{names: labels.NewNames(mostSeries)}
	instruments.Declare(p, "server/route/splits", m).Observe(func(o metric.Observer) {
		o.ObserveInt64(m.Back, int64(of.steppedBack()))
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
	m.Requests.Add(ctx, 1, m.label(a.Split, a.Side, result))
	if e.Failed {
		return
	}
	plain := m.label(a.Split, a.Side, "")
	if e.FirstToken > 0 {
		m.First.Record(ctx, e.FirstToken.Seconds(), plain)
	}
	m.Whole.Record(ctx, e.Took.Seconds(), plain)
}

func (m *metrics) steppedBack(model, side string, byRule bool) {
	by := "caller"
	if byRule {
		by = actorRule
	}
	m.StepBacks.Add(context.Background(), 1, m.label(model, side, ""), metric.WithAttributes(attribute.String("by", by)))
}
