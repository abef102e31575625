package callers

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

type metrics struct{ reads metric.Int64Counter }

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/edge/callers")
	reads, err := meter.Int64Counter("kvpilot.callers.reads", metric.WithUnit("{read}"),
		metric.WithDescription("Reads of a changed keys file or of the key set of tokens, by source and outcome. After a failure the previous one stays in force."))
	if err != nil {
		return nil, err
	}
	for _, source := range []Source{KeysFile, JWKS} {
		for _, outcome := range []string{"ok", "failed"} {
			reads.Add(context.Background(), 0, readLabels(source, outcome))
		}
	}
	return &metrics{reads}, nil
}

func (m *metrics) read(source Source, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.reads.Add(context.Background(), 1, readLabels(source, outcome))
}

func readLabels(source Source, outcome string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("source", string(source)), attribute.String("outcome", outcome))
}
