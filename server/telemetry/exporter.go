package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Bounds of the export.
const (
	exportQueue   = 1024 // traces that wait
	exportBatch   = 512  // spans per call
	exportEvery   = 2 * time.Second
	exportTimeout = 10 * time.Second
)

// batcher sends kept traces to the exporters from one goroutine. Handing traces over never
// blocks: what does not fit is dropped and counted.
type batcher struct {
	exporters []sdktrace.SpanExporter
	log       *slog.Logger
	dropped   func(int)
	queue     chan []sdktrace.ReadOnlySpan
	done      chan struct{}
	stop      chan struct{}
	once      sync.Once
}

// startBatcher starts the goroutine; close ends it.
func startBatcher(exporters []sdktrace.SpanExporter, log *slog.Logger, dropped func(int)) *batcher {
	b := &batcher{
		exporters: exporters, log: log, dropped: dropped,
		queue: make(chan []sdktrace.ReadOnlySpan, exportQueue), done: make(chan struct{}), stop: make(chan struct{}),
	}
	go b.run()
	return b
}

func (b *batcher) offer(spans []sdktrace.ReadOnlySpan) {
	select {
	case b.queue <- spans:
	default:
		b.dropped(len(spans))
	}
}

func (b *batcher) run() {
	defer close(b.done)
	ticker := time.NewTicker(exportEvery)
	defer ticker.Stop()
	var batch []sdktrace.ReadOnlySpan
	for {
		select {
		case spans := <-b.queue:
			if batch = append(batch, spans...); len(batch) >= exportBatch {
				batch = b.export(batch)
			}
		case <-ticker.C:
			batch = b.export(batch)
		case <-b.stop:
			for {
				select {
				case spans := <-b.queue:
					batch = append(batch, spans...)
					continue
				default:
				}
				b.export(batch)
				return
			}
		}
	}
}

// export sends the batch and returns an empty one.
func (b *batcher) export(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	if len(batch) == 0 {
		return batch
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	for _, e := range b.exporters {
		if err := e.ExportSpans(ctx, batch); err != nil {
			b.dropped(len(batch))
			b.log.Warn("spans were not exported", "spans", len(batch), "error", err)
		}
	}
	return nil
}

// close sends what is queued and shuts the exporters, at most until ctx ends.
func (b *batcher) close(ctx context.Context) error {
	b.once.Do(func() { close(b.stop) })
	select {
	case <-b.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, e := range b.exporters {
		if err := e.Shutdown(ctx); err != nil {
			return err
		}
	}
	return nil
}
