package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

// Bounds of the spans that wait for the exporters. Fewer and larger calls cost less; collectors take up to four
// megabytes.
const (
	drawQueue     = 16 << 20  // bytes of traces that are not drawn yet
	drawBatch     = 256 << 10 // bytes that are drawn at once: some sixty requests
	drawEvery     = time.Second
	exportQueue   = 4096 // spans
	exportBatch   = 2048 // spans per call: the spans of some 170 requests
	exportEvery   = time.Second
	exportTimeout = 10 * time.Second
	writeBuffer   = 256 << 10
)

// exporters makes the exporters of spans by the settings and OTEL_*. Exporters dial when there is something to
// send.
func exporters(ctx context.Context, c Traces, p Params) ([]sdktrace.SpanExporter, error) {
	list := slices.Clone(p.Exporters)
	var one sdktrace.SpanExporter
	var err error
	switch {
	case c.Endpoint != "":
		one, err = otlpExporter(ctx, c)
	case isSet(p.Env, "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
		if one, err = autoexport.NewSpanExporter(ctx); one != nil && autoexport.IsNoneSpanExporter(one) {
			return list, nil
		}
	default:
		return list, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trace exporter: %w", err)
	}
	return append(list, one), nil
}

// otlpExporter makes the exporter of the settings. Options that they leave open come from OTEL_EXPORTER_OTLP_*.
func otlpExporter(ctx context.Context, c Traces) (sdktrace.SpanExporter, error) {
	headers := map[string]string{"authorization": "Bearer " + c.Token.Reveal()}
	if c.Protocol == "http" {
		options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(c.Endpoint)}
		if c.Insecure {
			options = append(options, otlptracehttp.WithInsecure())
		}
		if !c.Token.IsEmpty() {
			options = append(options, otlptracehttp.WithHeaders(headers))
		}
		return otlptracehttp.New(ctx, options...)
	}
	options := []otlptracegrpc.Option{
		otlptracegrpc.WithEndpoint(c.Endpoint),
		otlptracegrpc.WithDialOption(grpc.WithWriteBufferSize(writeBuffer)), // a batch is few system calls
	}
	if c.Insecure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	if !c.Token.IsEmpty() {
		options = append(options, otlptracegrpc.WithHeaders(headers))
	}
	return otlptracegrpc.New(ctx, options...)
}

// isSet reports whether an environment has one of some variables.
func isSet(env []string, names ...string) bool {
	return slices.ContainsFunc(env, func(v string) bool {
		name, value, _ := strings.Cut(v, "=")
		return value != "" && slices.Contains(names, name)
	})
}

// counting is an exporter whose failures are counted and logged.
type counting struct {
	sdktrace.SpanExporter
	log   *slog.Logger
	drops *drops
}

// ExportSpans implements sdktrace.SpanExporter.
func (e counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.drops.Dropped(len(spans))
		e.log.Warn("spans were not exported", "spans", len(spans), "error", err)
	}
	return nil
}

// batching is the SDK's batch processor, with bounds that OTEL_BSP_* may change. It blocks its caller when
// the exporter is behind: the drawer alone waits then, and counts the spans that it cannot take.
func batching(e sdktrace.SpanExporter, env []string) sdktrace.SpanProcessor {
	options := []sdktrace.BatchSpanProcessorOption{sdktrace.WithBlocking()}
	if !isSet(env, "OTEL_BSP_SCHEDULE_DELAY") {
		options = append(options, sdktrace.WithBatchTimeout(exportEvery))
	}
	if !isSet(env, "OTEL_BSP_EXPORT_TIMEOUT") {
		options = append(options, sdktrace.WithExportTimeout(exportTimeout))
	}
	if !isSet(env, "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE") {
		options = append(options, sdktrace.WithMaxQueueSize(exportQueue), sdktrace.WithMaxExportBatchSize(exportBatch))
	}
	return sdktrace.NewBatchSpanProcessor(e, options...)
}

// drawer has kept traces drawn and hands their spans to the processors, in one goroutine, which sleeps until
// there are some sixty requests to draw or a second has passed. Handing traces over never blocks: further traces are dropped and counted.
type drawer struct {
	*drops
	processors []sdktrace.SpanProcessor
	full       chan struct{}
	done       chan struct{}
	stop       chan struct{}
	once       sync.Once

	mu      sync.Mutex
	waiting []*recorder.Trace // guarded by mu
	size    int               // guarded by mu: bytes, about
}

func newDrawer(processors []sdktrace.SpanProcessor, drops *drops) *drawer {
	return &drawer{processors: processors, drops: drops, full: make(chan struct{}, 1), done: make(chan struct{}), stop: make(chan struct{})}
}

// Keep implements recorder.Sink: the drawer takes the trace over.
func (d *drawer) Keep(t *recorder.Trace) {
	size := t.Size()
	d.mu.Lock()
	if d.size+size > drawQueue {
		d.mu.Unlock()
		d.Dropped(t.Lose())
		return
	}
	d.waiting = append(d.waiting, t)
	wake := d.size < drawBatch && d.size+size >= drawBatch
	d.size += size
	d.mu.Unlock()
	if wake {
		select {
		case d.full <- struct{}{}:
		default: // it is awake
		}
	}
}

// run draws until close is called.
func (d *drawer) run() {
	defer close(d.done)
	ticker := time.NewTicker(drawEvery)
	defer ticker.Stop()
	for last := false; !last; {
		select {
		case <-d.full:
		case <-ticker.C:
		case <-d.stop:
			last = true
		}
		for t := d.next(); t != nil; t = d.next() {
			for _, s := range t.Spans() {
				if !s.SpanContext().IsSampled() {
					s = sampled{s}
				}
				for _, p := range d.processors {
					p.OnEnd(s)
				}
			}
		}
	}
}

// next takes one of the traces that wait; nil when none does.
func (d *drawer) next() *recorder.Trace {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		d.waiting = nil
		return nil
	}
	t := d.waiting[0]
	d.waiting[0] = nil
	d.waiting = d.waiting[1:]
	d.size -= t.Size()
	return t
}

// close sends the waiting spans and stops the exporters, at most until ctx ends.
func (d *drawer) close(ctx context.Context) (err error) {
	d.once.Do(func() { close(d.stop) })
	select {
	case <-d.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	for _, p := range d.processors {
		err = errors.Join(err, p.Shutdown(ctx))
	}
	return err
}

// sampled is a span of a trace that is kept. The SDK's processors skip traces that the sampler did not choose,
// and some traces are kept for how they ended.
type sampled struct{ sdktrace.ReadOnlySpan }

// SpanContext implements sdktrace.ReadOnlySpan.
func (s sampled) SpanContext() trace.SpanContext {
	c := s.ReadOnlySpan.SpanContext()
	return c.WithTraceFlags(c.TraceFlags().WithSampled(true))
}
