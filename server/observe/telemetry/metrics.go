package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/observe/exposition"
)

// metricReaders makes what reads the parts' instruments, and what /metrics shows of them and of the process.
func metricReaders(c Metrics, version string) ([]sdkmetric.Option, prometheus.Gatherer, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(process(version)...)
	reader, err := newReader(registry)
	if err != nil {
		return nil, nil, err
	}
	readers, shown := []sdkmetric.Option{sdkmetric.WithReader(reader)}, prometheus.Gatherer(registry)
	if c.NativeHistograms {
		natives := prometheus.NewRegistry()
		reader, err := newReader(natives, promexporter.WithAggregationSelector(native))
		if err != nil {
			return nil, nil, err
		}
		readers, shown = append(readers, sdkmetric.WithReader(reader)), exposition.Native(shown, natives)
	}
	if c.EPPPool != "" {
		shown = exposition.EPP(shown, c.EPPPool)
	}
	return readers, shown, nil
}

func newReader(registry *prometheus.Registry, more ...promexporter.Option) (sdkmetric.Reader, error) {
	return promexporter.New(append(more, promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo(), promexporter.WithoutTargetInfo())...)
}

// native aggregates histograms in exponential buckets, and nothing else.
func native(kind sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	if kind == sdkmetric.InstrumentKindHistogram {
		return sdkmetric.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 8}
	}
	return sdkmetric.AggregationDrop{}
}
