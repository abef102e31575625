package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/kvpilot/kvpilot/server/recorder"
)

// Bounds of the export. Fewer and larger calls cost less; collectors take up to four megabytes.
const (
	exportQueue   = 8 << 20   // bytes that wait
	exportBatch   = 256 << 10 // bytes per call: the spans of some sixty requests
	exportEvery   = 2 * time.Second
	exportTimeout = 10 * time.Second
)

// batcher sends kept traces to the collectors from one goroutine, which sleeps until there is enough
// for a batch or its time has come, and then writes the spans of all in a row. Handing traces over never
// blocks: what does not fit is dropped and counted.
type batcher struct {
	clients []otlptrace.Client
	log     *slog.Logger
	dropped func(int)
	full    chan struct{}
	done    chan struct{}
	stop    chan struct{}
	once    sync.Once
	batch   recorder.Batch // used by run alone

	mu      sync.Mutex
	waiting []*recorder.Trace // guarded by mu
	bytes   int               // guarded by mu: the size of those
}

func newBatcher(clients []otlptrace.Client, log *slog.Logger, dropped func(int)) *batcher {
	return &batcher{clients: clients, log: log, dropped: dropped, full: make(chan struct{}, 1), done: make(chan struct{}), stop: make(chan struct{})}
}

// offer takes a trace over, or returns false.
func (b *batcher) offer(t *recorder.Trace) bool {
	size := t.Size()
	b.mu.Lock()
	if b.bytes+size > exportQueue {
		b.mu.Unlock()
		return false
	}
	b.waiting = append(b.waiting, t)
	wake := b.bytes < exportBatch && b.bytes+size >= exportBatch
	b.bytes += size
	b.mu.Unlock()
	if wake {
		select {
		case b.full <- struct{}{}:
		default: // it is awake
		}
	}
	return true
}

// run sends until close is called.
func (b *batcher) run(from *recorder.Recorder) {
	defer close(b.done)
	ticker := time.NewTicker(exportEvery)
	defer ticker.Stop()
	for last := false; !last; {
		some := false
		select {
		case <-b.full:
		case <-ticker.C:
			some = true
		case <-b.stop:
			some, last = true, true
		}
		for list := b.take(some); len(list) > 0; list = b.take(some) {
			b.export(from, list)
		}
	}
}

// take returns one batch of those that wait; a smaller one only where some will do.
func (b *batcher) take(some bool) []*recorder.Trace {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !some && b.bytes < exportBatch {
		return nil
	}
	n, size := 0, 0
	for n < len(b.waiting) && size < exportBatch {
		size += b.waiting[n].Size()
		n++
	}
	list := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	if b.bytes -= size; len(b.waiting) == 0 {
		b.waiting = nil
	}
	return list
}

// export writes and sends one batch.
func (b *batcher) export(from *recorder.Recorder, list []*recorder.Trace) {
	b.batch.Begin(from)
	for i, t := range list {
		b.batch.Add(t)
		from.Free(t)
		list[i] = nil
	}
	sent := []*tracepb.ResourceSpans{message(b.batch.Message(from))}
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	for _, c := range b.clients {
		if err := c.UploadTraces(ctx, sent); err != nil {
			b.batch.Drop() // a call that was given up may still be reading it
			b.dropped(b.batch.Len())
			b.log.Warn("spans were not exported", "spans", b.batch.Len(), "error", err)
		}
	}
}

// close sends what waits and stops the clients, at most until ctx ends.
func (b *batcher) close(ctx context.Context) error {
	b.once.Do(func() { close(b.stop) })
	select {
	case <-b.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, c := range b.clients {
		if err := c.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}
