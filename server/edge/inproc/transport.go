package inproc

import (
	"errors"
	"sync"

	"google.golang.org/grpc/metadata"
)

var errHeaderSent = errors.New("the header was sent already")

// transport holds a call's response metadata. It is what grpc.SetHeader and grpc.SetTrailer find
// in a handler's context.
type transport struct {
	method string

	mu      sync.Mutex
	header  metadata.MD   // guarded by mu
	trailer metadata.MD   // guarded by mu
	sent    bool          // guarded by mu: the header is final
	onSent  chan struct{} // closed when sent is set; nil when nobody waits for it
}

func (t *transport) Method() string { return t.method }

func (t *transport) SetHeader(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent {
		return errHeaderSent
	}
	t.header = metadata.Join(t.header, md)
	return nil
}

func (t *transport) SendHeader(md metadata.MD) error {
	if err := t.SetHeader(md); err != nil {
		return err
	}
	t.flush()
	return nil
}

func (t *transport) SetTrailer(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trailer = metadata.Join(t.trailer, md)
	return nil
}

// flush makes the header final; later calls do nothing.
func (t *transport) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sent {
		t.sent = true
		if t.onSent != nil {
			close(t.onSent)
		}
	}
}

func (t *transport) headers() metadata.MD {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.header.Copy()
}

func (t *transport) trailers() metadata.MD {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trailer.Copy()
}
