package callers

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct {
	Reads instruments.Keyed[read] `metric:"kvpilot.callers.reads" unit:"{read}" by:"source outcome" help:"Reads of a changed keys file or of tokens' key set, by source and outcome."`
}

// read is a read of keys, with its outcome.
type read struct {
	source  Source
	outcome string
}

// Labels has the labels of the key in metrics.
func (r read) Labels() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("source", string(r.source)), attribute.String("outcome", r.outcome)}
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/edge/callers", m)
	m.Reads.Know(read{KeysFile, "ok"}, read{KeysFile, "failed"}, read{JWKS, "ok"}, read{JWKS, "failed"})
	return m
}

func (m *metrics) read(source Source, err error) {
	if err != nil {
		m.Reads.Add(read{source, "failed"})
		return
	}
	m.Reads.Add(read{source, "ok"})
}
