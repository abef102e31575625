package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/observe/exposition"
)

// shown is what /metrics shows, by the form that a scraper asks for.
type shown struct {
	text, protobuf prometheus.Gatherer
}

// each returns the results of f for both forms.
func (s shown) each(f func(prometheus.Gatherer) prometheus.Gatherer) shown {
	return shown{f(s.text), f(s.protobuf)}
}

// ServeHTTP serves the metrics in Prometheus' and OpenMetrics' text forms and as protobuf.
func (s shown) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := s.text
	if expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...).FormatType() == expfmt.TypeProtoDelim {
		from = s.protobuf
	}
	promhttp.HandlerFor(from, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
}

// metricReaders makes the readers of the parts' instruments, and the form of /metrics for them and for the process.
func metricReaders(c Metrics, version string) ([]sdkmetric.Option, shown, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(process(version)...)
	reader, err := newReader(registry)
	if err != nil {
		return nil, shown{}, err
	}
	readers, shows := []sdkmetric.Option{sdkmetric.WithReader(reader)}, shown{registry, registry}
	if c.NativeHistograms {
		natives := prometheus.NewRegistry()
		reader, err := newReader(natives, promexporter.WithAggregationSelector(native))
		if err != nil {
			return nil, shown{}, err
		}
		readers = append(readers, sdkmetric.WithReader(reader))
		shows.protobuf = exposition.Native(registry, natives)
	}
	if c.EPPPool != "" {
		shows = shows.each(func(g prometheus.Gatherer) prometheus.Gatherer { return exposition.EPP(g, c.EPPPool) })
	}
	return readers, shows, nil
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
