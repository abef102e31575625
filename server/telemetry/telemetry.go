package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/kvpilot/kvpilot/server/recorder"
)

// Params is what the process hands in beside the Config.
type Params struct {
	// LogTo receives the log.
	LogTo io.Writer
	// Version is the router's version, for the resource.
	Version string
	// Instance names this process among the routers of a fleet.
	Instance string
	// Collectors receive the traces that are kept, beside the configured endpoint.
	Collectors []otlptrace.Client
	// Shown is given copies of recorded traces when their first span ends, kept or not, at most twenty
	// a second. It must not block, and nil shows nobody.
	Shown func(*recorder.Trace)
}

// Telemetry holds what the parts are handed. Its methods are safe for concurrent use.
type Telemetry struct {
	log      *slog.Logger
	level    slog.LevelVar
	sampling *sampling
	slow     atomic.Int64 // nanoseconds
	meters   *sdkmetric.MeterProvider
	tracers  trace.TracerProvider
	registry *prometheus.Registry
	batcher  *batcher // nil when nothing is recorded

	given metric.MeterProvider // set by Of, instead of meters
}

// New builds the providers. Exporters dial in the background; Close ends what New started.
func New(ctx context.Context, c Config, p Params) (*Telemetry, error) {
	res := resource.NewSchemaless(
		semconv.ServiceName(c.ServiceName),
		semconv.ServiceVersion(p.Version),
		semconv.ServiceInstanceID(p.Instance),
	)
	registry := prometheus.NewRegistry()
	registry.MustRegister(process(p.Version)...)
	reader, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo(), promexporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	t := &Telemetry{
		meters:   sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(reader), sdkmetric.WithExemplarFilter(exemplar.TraceBasedFilter)),
		registry: registry,
	}
	t.log = newLogger(c, p.LogTo, &t.level)
	t.setLevel(c)
	return t, t.startTracing(ctx, c.Traces, res, p)
}

// startTracing makes the tracer. With nobody to send spans to, none are recorded but those that are
// shown.
func (t *Telemetry) startTracing(ctx context.Context, c Traces, res *resource.Resource, p Params) error {
	clients := p.Collectors
	if c.Endpoint != "" {
		clients = append(clients, newClient(c))
	}
	if len(clients) == 0 && p.Shown == nil || c.Ratio == 0 {
		t.tracers = off{}
		return nil
	}
	for _, client := range clients {
		if err := client.Start(ctx); err != nil {
			return fmt.Errorf("trace exporter: %w", err)
		}
	}
	drops, err := droppedSpans(t.meters)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	dropped := func(n int) { drops.Add(context.Background(), int64(n)) }
	dropped(0)
	t.sampling = newSampling(c)
	t.slow.Store(int64(c.Slow))
	var r *recorder.Recorder
	keep := func(kept *recorder.Trace) { r.Free(kept) }
	if len(clients) > 0 {
		t.batcher = newBatcher(clients, t.log, dropped)
		keep = func(kept *recorder.Trace) {
			if !t.batcher.offer(kept) {
				dropped(kept.Len())
				r.Free(kept)
			}
		}
	}
	r = recorder.New(recorder.Params{
		Resource: res, Sampler: t.sampling, Slow: t.slowFrom,
		Keep: keep, Dropped: dropped, Shown: p.Shown, OnlyShown: len(clients) == 0,
	})
	if t.batcher != nil {
		go t.batcher.run(r)
	}
	t.tracers = r
	return nil
}

// sampler chooses the traces that are kept.
func sampler(c Traces) sdktrace.Sampler {
	own := sdktrace.TraceIDRatioBased(c.Ratio)
	if c.TrustParent {
		return sdktrace.ParentBased(own)
	}
	return sdktrace.ParentBased(own, sdktrace.WithRemoteParentSampled(own), sdktrace.WithRemoteParentNotSampled(own))
}

func droppedSpans(m metric.MeterProvider) (metric.Int64Counter, error) {
	return m.Meter("github.com/kvpilot/kvpilot/server/telemetry").Int64Counter("kvpilot.telemetry.spans.dropped",
		metric.WithUnit("{span}"), metric.WithDescription("Spans that were to be kept and could not be: the exporter is too slow or fails."))
}

// newClient makes what sends spans; it dials when there is something to send.
func newClient(c Traces) otlptrace.Client {
	headers := map[string]string{}
	if !c.Token.IsEmpty() {
		headers["authorization"] = "Bearer " + c.Token.Reveal()
	}
	if c.Protocol == "http" {
		options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(c.Endpoint), otlptracehttp.WithHeaders(headers)}
		if c.Insecure {
			options = append(options, otlptracehttp.WithInsecure())
		}
		return otlptracehttp.NewClient(options...)
	}
	options := []otlptracegrpc.Option{
		otlptracegrpc.WithEndpoint(c.Endpoint), otlptracegrpc.WithHeaders(headers),
		otlptracegrpc.WithDialOption(grpc.WithWriteBufferSize(exportBatch), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()))), // a batch is one system call, and no copy
	}
	if c.Insecure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	return otlptracegrpc.NewClient(options...)
}

func newLogger(c Config, to io.Writer, level *slog.LevelVar) *slog.Logger {
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
func (t *Telemetry) Meters() metric.MeterProvider {
	if t.given != nil {
		return t.given
	}
	return t.meters
}

// Tracers makes the tracers of every part.
func (t *Telemetry) Tracers() trace.TracerProvider {
	return t.tracers
}

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
	if t.given != nil {
		return nil
	}
	err := t.meters.Shutdown(ctx)
	if t.batcher != nil {
		err = errors.Join(err, t.batcher.close(ctx))
	}
	return err
}

// Of joins providers that the caller made; Close shuts none of them. It is for tools that look at
// what the parts measure.
func Of(log *slog.Logger, meters metric.MeterProvider, tracers trace.TracerProvider) *Telemetry {
	_, _ = droppedSpans(meters) // declared, so that it is listed
	return &Telemetry{log: log, given: meters, tracers: tracers, registry: prometheus.NewRegistry()}
}
