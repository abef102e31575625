package callers

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

type metrics struct{ reads metric.Int64Counter }

func newMetrics(provider metric.MeterProvider) *metrics {
	return &metrics{instruments.New(provider, "server/edge/callers").CounterBy("kvpilot.callers.reads", "{read}",
		"Reads of a changed keys file or of tokens' key set, by source and outcome.",
		readLabels(KeysFile, "ok"), readLabels(KeysFile, "failed"), readLabels(JWKS, "ok"), readLabels(JWKS, "failed"))}
}

func (m *metrics) read(source Source, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.reads.Add(context.Background(), 1, readLabels(source, outcome))
}

func readLabels(source Source, outcome string) metric.MeasurementOption {
	return instruments.Labels(attribute.String("source", string(source)), attribute.String("outcome", outcome))
}
