package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Params is what the process hands in beside the Config.
type Params struct {
	// LogTo receives the log.
	LogTo io.Writer
	// Version is the router's version, for the resource.
	Version string
	// Instance names this process among the routers of a fleet.
	Instance string
	// Exporters receive every finished span that is kept, beside the configured endpoint.
	Exporters []sdktrace.SpanExporter
}

// Telemetry holds what the parts are handed. Its methods are safe for concurrent use.
type Telemetry struct {
	log      *slog.Logger
	meters   *sdkmetric.MeterProvider
	tracers  *sdktrace.TracerProvider
	registry *prometheus.Registry
}

// New builds the providers. It connects to nothing: exporters dial in the background.
func New(ctx context.Context, c Config, p Params) (*Telemetry, error) {
	res := resource.NewSchemaless(
		semconv.ServiceName(c.ServiceName),
		semconv.ServiceVersion(p.Version),
		semconv.ServiceInstanceID(p.Instance),
	)
	registry := prometheus.NewRegistry()
	reader, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo(), promexporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.Traces.Ratio))),
	}
	exporters := p.Exporters
	if c.Traces.Endpoint != "" {
		exporter, err := newExporter(ctx, c.Traces)
		if err != nil {
			return nil, err
		}
		exporters = append(exporters, exporter)
	}
	for _, e := range exporters {
		options = append(options, sdktrace.WithBatcher(e))
	}
	return &Telemetry{
		log:      newLogger(c, p.LogTo),
		meters:   sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(reader)),
		tracers:  sdktrace.NewTracerProvider(options...),
		registry: registry,
	}, nil
}

func newExporter(ctx context.Context, c Traces) (sdktrace.SpanExporter, error) {
	headers := map[string]string{}
	if !c.Token.IsEmpty() {
		headers["Authorization"] = "Bearer " + c.Token.Reveal()
	}
	if c.Protocol == "http" {
		options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(c.Endpoint), otlptracehttp.WithHeaders(headers)}
		if c.Insecure {
			options = append(options, otlptracehttp.WithInsecure())
		}
		return otlptracehttp.New(ctx, options...)
	}
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.Endpoint), otlptracegrpc.WithHeaders(headers)}
	if c.Insecure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	return otlptracegrpc.New(ctx, options...)
}

func newLogger(c Config, to io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Validate refuses anything else
	}
	if to == nil {
		to = io.Discard
	}
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}

// Log is the process's logger.
func (t *Telemetry) Log() *slog.Logger { return t.log }

// Meters makes the meters of every part.
func (t *Telemetry) Meters() metric.MeterProvider { return t.meters }

// Tracers makes the tracers of every part.
func (t *Telemetry) Tracers() trace.TracerProvider { return t.tracers }

// Propagator reads and writes W3C trace context and baggage.
func (t *Telemetry) Propagator() propagation.TextMapPropagator {
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
}

// MetricsHandler serves the metrics in Prometheus' and OpenMetrics' text forms.
func (t *Telemetry) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Close flushes what is buffered and stops the exporters, at most until ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	return errors.Join(t.tracers.Shutdown(ctx), t.meters.Shutdown(ctx))
}
