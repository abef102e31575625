package link

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this package wraps
	"google.golang.org/grpc/mem"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// The halves of a link, in labels and logs.
const (
	frontendHalf = "frontend"
	deciderHalf  = "decider"
)

// traffic counts one kind of message. Counting costs an atomic addition; the instruments read it.
type traffic struct{ in, out atomic.Int64 }

func (t *traffic) received(n int) { t.in.Add(int64(n)) }
func (t *traffic) sent(n int)     { t.out.Add(int64(n)) }

type metrics struct {
	Links    metric.Int64ObservableGauge   `metric:"kvpilot.peers.links" unit:"{link}" by:"half state" help:"Links with other routers, by half (frontend: this router asks; decider: it is asked) and state (up, connecting)."`
	Messages metric.Int64ObservableCounter `metric:"kvpilot.peers.messages" unit:"{message}" by:"kind direction" help:"Messages between routers, by kind (event: from frontend to decider; reply: back) and direction (in, out)."`
	Bytes    metric.Int64ObservableCounter `metric:"kvpilot.peers.bytes" unit:"By" by:"direction" help:"Bytes of messages between routers, without the framing, by direction (in, out)."`

	events, replies, bytes traffic
}

func newMetrics(p metric.MeterProvider, l *Links) *metrics {
	m := &metrics{}
	s := instruments.Declare(p, "server/peers/link", m)
	label := func(key, value string, more ...string) metric.MeasurementOption {
		set := []attribute.KeyValue{attribute.String(key, value)}
		for i := 0; i+1 < len(more); i += 2 {
			set = append(set, attribute.String(more[i], more[i+1]))
		}
		return instruments.Labels(set...)
	}
	askUp, asking, asked := label("half", frontendHalf, "state", "up"), label("half", frontendHalf, "state", "connecting"), label("half", deciderHalf, "state", "up")
	eventIn, eventOut := label("kind", "event", "direction", "in"), label("kind", "event", "direction", "out")
	replyIn, replyOut := label("kind", "reply", "direction", "in"), label("kind", "reply", "direction", "out")
	in, out := label("direction", "in"), label("direction", "out")
	s.Observe(func(o metric.Observer) {
		l.mu.Lock()
		up, all, inlets := 0, len(l.outlets), len(l.inlets)
		for _, outlet := range l.outlets {
			if outlet.waiting != nil {
				up++
			}
		}
		l.mu.Unlock()
		o.ObserveInt64(m.Links, int64(up), askUp)
		o.ObserveInt64(m.Links, int64(all-up), asking)
		o.ObserveInt64(m.Links, int64(inlets), asked)
		o.ObserveInt64(m.Messages, m.events.in.Load(), eventIn)
		o.ObserveInt64(m.Messages, m.events.out.Load(), eventOut)
		o.ObserveInt64(m.Messages, m.replies.in.Load(), replyIn)
		o.ObserveInt64(m.Messages, m.replies.out.Load(), replyOut)
		o.ObserveInt64(m.Bytes, m.bytes.in.Load(), in)
		o.ObserveInt64(m.Bytes, m.bytes.out.Load(), out)
	})
	return m
}

// codec is grpc's own, which also counts bytes.
func (m *metrics) codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto"), &m.bytes} }

type codec struct {
	encoding.CodecV2
	bytes *traffic
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	c.bytes.sent(data.Len())
	return data, err
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	c.bytes.received(data.Len())
	return c.CodecV2.Unmarshal(data, v)
}
