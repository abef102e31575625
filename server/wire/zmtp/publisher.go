package zmtp

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
)

// EndOfReplay is the sequence number that ends a replay; it never numbers a batch.
const EndOfReplay = ^uint64(0)

// PublisherParams shape a Publisher. The zero value of each field takes the default.
type PublisherParams struct {
	// Topic is the first frame of each message.
	Topic string
	// Buffer is how many batches are kept for replays; 0 means 10000.
	Buffer int
	// HighWater is how many batches wait for a slow subscriber before some are dropped; 0 means 10000.
	HighWater int
	// ID names the publishing process: 16 bytes behind each batch's number. Zero sends none, as every
	// released vLLM does.
	ID [16]byte
	// ReplayTopic puts the topic into replayed messages too, as vLLM does from 0.26 on.
	ReplayTopic bool
}

// Publisher is the numbered stream of an engine's KV events in vLLM's framing: topic, sequence
// number (8 bytes, big-endian, from 0) and payload over PUB, and a ring of past batches behind
// a ROUTER. It is safe for concurrent use. A new Publisher is a new engine life: numbers
// start from 0 again and nothing on the wire says so.
type Publisher struct {
	params PublisherParams
	pub    *Pub

	mu   sync.Mutex
	next uint64   // guarded by mu
	ring []record // guarded by mu; ring[i] is older than ring[i+1] counted from head
	head int      // guarded by mu
}

type record struct {
	seq     uint64
	payload []byte
}

// NewPublisher returns a Publisher without subscribers.
func NewPublisher(p PublisherParams) *Publisher {
	if p.Buffer <= 0 {
		p.Buffer = 10000
	}
	if p.HighWater <= 0 {
		p.HighWater = 10000
	}
	return &Publisher{params: p, pub: NewPub(p.HighWater)}
}

// Serve accepts subscribers from ln until ctx ends.
func (p *Publisher) Serve(ctx context.Context, ln net.Listener) error { return p.pub.Serve(ctx, ln) }

// Dial publishes to a subscriber that has bound endpoint, until the connection or ctx ends.
func (p *Publisher) Dial(ctx context.Context, endpoint string) error {
	return p.pub.dial(ctx, endpoint)
}

// ServeReplay answers replay requests from ln until ctx ends.
func (p *Publisher) ServeReplay(ctx context.Context, ln net.Listener) error {
	return Serve(ctx, ln, Params{Type: ROUTER}, p.replay)
}

// Publish numbers payload, keeps it for replays and sends it to the subscribers. The payload
// must not be changed afterwards.
func (p *Publisher) Publish(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq = p.record(payload)
	p.send(seq, payload)
	return seq
}

// Lose numbers payload and keeps it for replays but does not send it: a batch lost on its way.
func (p *Publisher) Lose(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record(payload)
}

// Skip uses up n numbers with nothing behind them: batches that failed to encode. No replay
// can fill such a hole.
func (p *Publisher) Skip(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next += n
}

// Next is the number that the next batch will get.
func (p *Publisher) Next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Subscriptions counts the subscriptions of all connected subscribers.
func (p *Publisher) Subscriptions() int { return p.pub.Subscriptions() }

// Dropped counts the messages that found a subscriber's queue at its high-water mark.
func (p *Publisher) Dropped() uint64 { return p.pub.dropped.Load() }

// Disconnect closes every subscriber's connection; subscribers that dial reconnect by themselves.
func (p *Publisher) Disconnect() { p.pub.disconnect() }

// record numbers payload and keeps it. The caller holds p.mu.
func (p *Publisher) record(payload []byte) uint64 {
	r := record{seq: p.next, payload: payload}
	p.next++
	if len(p.ring) < p.params.Buffer {
		p.ring = append(p.ring, r)
	} else {
		p.ring[p.head] = r
		p.head = (p.head + 1) % len(p.ring)
	}
	return r.seq
}

func (p *Publisher) send(seq uint64, payload []byte) {
	p.pub.Send([]byte(p.params.Topic), p.number(seq), payload)
}

// number is the frame before the payload.
func (p *Publisher) number(seq uint64) []byte {
	frame := binary.BigEndian.AppendUint64(make([]byte, 0, 24), seq)
	if p.params.ID != ([16]byte{}) {
		frame = append(frame, p.params.ID[:]...)
	}
	return frame
}

// kept returns the records numbered from and above, oldest first.
func (p *Publisher) kept(from uint64) []record {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []record
	for i := range p.ring {
		if r := p.ring[(p.head+i)%len(p.ring)]; r.seq >= from {
			list = append(list, r)
		}
	}
	return list
}

// replay answers the requests of one peer. Anything but an empty delimiter and a number is
// ignored, as vLLM ignores it.
func (p *Publisher) replay(_ context.Context, c *Conn) {
	var m Message
	var wire []byte
	for c.Recv(&m) == nil {
		if len(m.Frames) != 2 || len(m.Frames[0]) != 0 || len(m.Frames[1]) != 8 {
			continue
		}
		for _, r := range p.kept(binary.BigEndian.Uint64(m.Frames[1])) {
			wire = p.appendReply(wire, p.params.Topic, r.seq, r.payload)
			if len(wire) >= writeBuffer {
				if c.WriteEncoded(wire) != nil {
					return
				}
				wire = wire[:0]
			}
		}
		wire = p.appendReply(wire, "", EndOfReplay, nil)
		if c.WriteEncoded(wire) != nil {
			return
		}
		wire = wire[:0]
	}
}

func (p *Publisher) appendReply(dst []byte, topic string, seq uint64, payload []byte) []byte {
	number := p.number(seq)
	if p.params.ReplayTopic {
		return AppendMessage(dst, nil, []byte(topic), number, payload)
	}
	return AppendMessage(dst, nil, number, payload)
}
