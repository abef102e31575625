package history

import (
	"sync"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Traces keeps the spans of the last requests. The zero value is empty.
type Traces struct {
	mu   sync.Mutex
	ring [24][]sdktrace.ReadOnlySpan // guarded by mu
	next int                         // guarded by mu
}

// Add keeps the spans of one trace, of which the first local one is the last. A trace of one span is left out: it says nothing
// that its decision does not.
func (t *Traces) Add(spans []sdktrace.ReadOnlySpan) {
	if len(spans) < 2 {
		return
	}
	t.mu.Lock()
	t.ring[t.next%len(t.ring)] = spans
	t.next++
	t.mu.Unlock()
}

// Last returns the traces, newest first.
func (t *Traces) Last() [][]sdktrace.ReadOnlySpan {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list [][]sdktrace.ReadOnlySpan
	for i := range len(t.ring) {
		if spans := t.ring[(t.next-1-i+2*len(t.ring))%len(t.ring)]; spans != nil {
			list = append(list, spans)
		}
	}
	return list
}
