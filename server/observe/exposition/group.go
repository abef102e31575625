package exposition

import (
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// group adds up series that become one.
type group struct {
	metric *dto.Metric
	series int
}

// add adds a series, which it does not change.
func (g *group) add(m *dto.Metric) {
	g.series++
	switch into := g.metric; {
	case m.GetCounter() != nil:
		if into.Counter == nil {
			into.Counter = &dto.Counter{Value: proto.Float64(0)}
		}
		*into.Counter.Value += m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		if into.Gauge == nil {
			into.Gauge = &dto.Gauge{Value: proto.Float64(0)}
		}
		*into.Gauge.Value += m.GetGauge().GetValue()
	case m.GetHistogram() != nil:
		if into.Histogram == nil {
			into.Histogram = &dto.Histogram{SampleCount: proto.Uint64(0), SampleSum: proto.Float64(0)}
		}
		addHistogram(into.Histogram, m.GetHistogram())
	}
}

// addHistogram adds the classic buckets of h, whose bounds are the same as in into: both are of one instrument. Native buckets
// stay kvpilot's own.
func addHistogram(into, h *dto.Histogram) {
	*into.SampleCount += h.GetSampleCount()
	*into.SampleSum += h.GetSampleSum()
	if into.Bucket == nil {
		for _, b := range h.GetBucket() {
			into.Bucket = append(into.Bucket, &dto.Bucket{UpperBound: proto.Float64(b.GetUpperBound()), CumulativeCount: proto.Uint64(b.GetCumulativeCount())})
		}
		return
	}
	for i, b := range h.GetBucket() {
		*into.Bucket[i].CumulativeCount += b.GetCumulativeCount()
	}
}

// end returns the sum or the mean of the added metrics.
func (g *group) end(mean bool) *dto.Metric {
	if mean && g.metric.Gauge != nil {
		*g.metric.Gauge.Value /= float64(g.series)
	}
	return g.metric
}
