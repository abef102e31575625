package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

// Params has the arguments of the process in addition to the Config.
type Params struct {
	// LogTo receives the log.
	LogTo io.Writer
	// Version is the router's version, for the resource.
	Version string
	// Instance names this process among the routers of a fleet.
	Instance string
	// Exporters receive the traces that are kept, in addition to the configured endpoint.
	Exporters []sdktrace.SpanExporter
	// Display shows recorded traces, kept or not, at most twenty a second; nil shows none.
	Display recorder.Display
	// Env is the environment in os.Environ's form: which OTEL_* variables are set. OpenTelemetry's library
	// reads their values from the process.
	Env []string
}

// Telemetry holds the objects for the parts. Its methods are safe for concurrent use.
type Telemetry struct {
	log      *slog.Logger
	level    slog.LevelVar
	sampling *sampling
	slow     atomic.Int64 // nanoseconds
	meters   *sdkmetric.MeterProvider
	tracers  trace.TracerProvider
	shown    shown   // what /metrics shows
	drawer   *drawer // nil when nothing is exported

	given metric.MeterProvider // set by Of, instead of meters
}

// New builds the providers. Exporters dial in the background; Close ends the providers.
func New(ctx context.Context, c Config, p Params) (*Telemetry, error) {
	res, err := about(ctx, c, p)
	if err != nil {
		return nil, err
	}
	readers, shown, err := metricReaders(c.Metrics, p.Version)
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	t := &Telemetry{
		meters: sdkmetric.NewMeterProvider(append(readers, sdkmetric.WithResource(res), sdkmetric.WithExemplarFilter(exemplar.TraceBasedFilter))...),
		shown:  shown,
	}
	t.log = newLogger(c, p.LogTo, &t.level)
	t.setLevel(c)
	return t, t.startTracing(ctx, c.Traces, res, p)
}

// about is the subject of spans and metrics: this process, with the values of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
// A name in the settings counts more.
func about(ctx context.Context, c Config, p Params) (*resource.Resource, error) {
	name := semconv.ServiceName(c.ServiceName)
	options := []resource.Option{
		resource.WithSchemaURL(semconv.SchemaURL), resource.WithTelemetrySDK(),
		resource.WithAttributes(name, semconv.ServiceVersion(p.Version), semconv.ServiceInstanceID(p.Instance)),
		resource.WithFromEnv(),
	}
	if c.ServiceName != DefaultConfig().ServiceName {
		options = append(options, resource.WithAttributes(name))
	}
	res, err := resource.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}

// startTracing makes the tracer. With nowhere to send spans to, none are recorded but the shown ones.
func (t *Telemetry) startTracing(ctx context.Context, c Traces, res *resource.Resource, p Params) error {
	if c.Ratio == 0 || slices.Contains(p.Env, "OTEL_SDK_DISABLED=true") {
		t.tracers = off{}
		return nil
	}
	to, err := exporters(ctx, c, p)
	if err != nil {
		return err
	}
	if len(to) == 0 && p.Display == nil {
		t.tracers = off{}
		return nil
	}
	drops := &drops{}
	instruments.Declare(t.meters, "server/observe/telemetry", drops)
	t.sampling = newSampling(c)
	t.slow.Store(int64(c.Slow))
	sink := recorder.Sink(nowhere{drops})
	if len(to) > 0 {
		var processors []sdktrace.SpanProcessor
		for _, e := range to {
			processors = append(processors, batching(counting{e, t.log, drops}, p.Env))
		}
		t.drawer = newDrawer(processors, drops)
		sink = t.drawer
		go t.drawer.run()
	}
	t.tracers = recorder.New(recorder.Params{
		Resource: res, Sampler: t.sampling, Slow: &t.slow, To: sink, Display: p.Display, OnlyShown: len(to) == 0,
	})
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

// drops counts the spans that are lost.
type drops struct {
	Lost metric.Int64Counter `metric:"kvpilot.telemetry.spans.dropped" unit:"{span}" help:"Spans lost because the exporter was too slow or failed."`
}

// Dropped counts lost spans.
func (d *drops) Dropped(spans int) { d.Lost.Add(context.Background(), int64(spans)) }

// nowhere is the sink of traces that are only shown.
type nowhere struct{ *drops }

// Keep implements recorder.Sink.
func (nowhere) Keep(t *recorder.Trace) { t.Drop() }

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

// Scope returns the scope with which parts report.
func (t *Telemetry) Scope() scope.Scope { return scope.New(t.log, t.Meters(), t.tracers) }

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

// MetricsHandler serves the metrics in Prometheus' and OpenMetrics' text forms and as protobuf.
func (t *Telemetry) MetricsHandler() http.Handler {
	return t.shown
}

// Close flushes the buffers and stops the exporters, at most until ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	if t.given != nil {
		return nil
	}
	var err error
	if t.drawer != nil {
		err = t.drawer.close(ctx)
	}
	return errors.Join(err, t.meters.Shutdown(ctx)) // at last: it counts the spans that are lost
}

// Of joins providers that the caller made; Close shuts none of them. It is for tools that look at
// what the parts measure.
func Of(log *slog.Logger, meters metric.MeterProvider, tracers trace.TracerProvider) *Telemetry {
	instruments.Declare(meters, "server/observe/telemetry", &drops{}) // declared, so that it is listed
	none := prometheus.NewRegistry()
	return &Telemetry{log: log, given: meters, tracers: tracers, shown: shown{none, none}}
}
