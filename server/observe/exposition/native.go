package exposition

import (
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Native returns the metrics of classic, its histograms extended by the native ones of native for the same instruments.
// It is for scrapers that ask for protobuf: text has no place for native buckets.
//
// Both are read one after the other while requests run, so each set of buckets has a count of its own. Prometheus
// demands that SampleCount and SampleSum agree with the native buckets: they come from the later reading, native.
// The count of the classic buckets stands in the bucket without a bound, which scrapers else make of SampleCount: a rate
// of buckets from two readings would fall from one bound to the next.
func Native(classic, native prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := classic.Gather()
		if err != nil {
			return families, err
		}
		more, err := native.Gather()
		if err != nil {
			return families, err
		}
		byName := map[string]map[string]*dto.Histogram{}
		for _, f := range more {
			byName[f.GetName()] = histograms(f)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if n := byName[f.GetName()][key(m)]; n != nil && m.GetHistogram() != nil {
					extend(m.GetHistogram(), n)
				}
			}
		}
		return families, nil
	})
}

// histograms are a family's histograms by their labels.
func histograms(f *dto.MetricFamily) map[string]*dto.Histogram {
	if f.GetType() != dto.MetricType_HISTOGRAM {
		return nil
	}
	all := make(map[string]*dto.Histogram, len(f.GetMetric()))
	for _, m := range f.GetMetric() {
		all[key(m)] = m.GetHistogram()
	}
	return all
}

// key is a metric's labels as one text. Gatherers sort labels by name.
func key(m *dto.Metric) string {
	var b strings.Builder
	for _, l := range m.GetLabel() {
		b.WriteString(l.GetName())
		b.WriteByte(0xff) // in no valid UTF-8
		b.WriteString(l.GetValue())
		b.WriteByte(0xff)
	}
	return b.String()
}

// extend gives a classic histogram the native buckets of n.
func extend(h, n *dto.Histogram) {
	if last := len(h.Bucket) - 1; last < 0 || !math.IsInf(h.Bucket[last].GetUpperBound(), 1) {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: new(math.Inf(1)), CumulativeCount: h.SampleCount})
	}
	h.SampleCount, h.SampleSum = n.SampleCount, n.SampleSum
	h.Schema, h.ZeroThreshold, h.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	h.PositiveSpan, h.PositiveDelta = n.PositiveSpan, n.PositiveDelta
	h.NegativeSpan, h.NegativeDelta = n.NegativeSpan, n.NegativeDelta
	h.CreatedTimestamp = n.CreatedTimestamp
}
