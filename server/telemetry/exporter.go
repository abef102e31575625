package telemetry

import (
	"context"
	"log/slog"
	"slices"
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

// batcher sends kept traces to the collectors from one goroutine, which sleeps until a batch is
// full or its time has come. Handing traces over never blocks: what does not fit is dropped and
// counted.
type batcher struct {
	clients []otlptrace.Client
	log     *slog.Logger
	dropped func(int)
	full    chan struct{}
	done    chan struct{}
	stop    chan struct{}
	once    sync.Once
	buffer  []byte // used by run alone

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

// export sends one batch. The spans are encoded: they go into the message as they are, as fields
// that it does not know, which the library sends as it does any others.
func (b *batcher) export(from *recorder.Recorder, list []*recorder.Trace) {
	size, spans := 0, 0
	for _, t := range list {
		size, spans = size+t.Size(), spans+t.Len()
	}
	b.buffer = from.Message(slices.Grow(b.buffer[:0], size+4<<10), list)
	message := &tracepb.ResourceSpans{}
	message.ProtoReflect().SetUnknown(b.buffer)
	for _, t := range list {
		from.Free(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	for _, c := range b.clients {
		if err := c.UploadTraces(ctx, []*tracepb.ResourceSpans{message}); err != nil {
			b.dropped(spans)
			b.log.Warn("spans were not exported", "spans", spans, "error", err)
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
