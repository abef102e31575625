package exposition

import (
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Native returns what classic gathers, its histograms extended by the native ones that native gathers of the same
// instruments. Scrapers that ask for the text forms get the classic buckets, those that ask for protobuf get both.
//
// Both are read one after the other while requests run. The later reading, native, has the count and sum, so that they
// agree with the native buckets exactly, as Prometheus demands; a classic bucket may lag by what happened in between.
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
	h.SampleCount, h.SampleSum = n.SampleCount, n.SampleSum
	h.Schema, h.ZeroThreshold, h.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	h.PositiveSpan, h.PositiveDelta = n.PositiveSpan, n.PositiveDelta
	h.NegativeSpan, h.NegativeDelta = n.NegativeSpan, n.NegativeDelta
	h.CreatedTimestamp = n.CreatedTimestamp
	// Scrapers take the count for the bucket without a bound.
	h.Bucket = slices.DeleteFunc(h.Bucket, func(b *dto.Bucket) bool { return math.IsInf(b.GetUpperBound(), 1) })
}
