package zmtp

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Pub is the state of a PUB socket: its subscribers and their subscriptions. Use NewPub. It is safe
// for concurrent use; messages of one caller reach each subscriber in order.
type Pub struct {
	highWater int
	dropped   atomic.Uint64

	mu   sync.RWMutex
	subs map[*subscriber]struct{} // guarded by mu
}

type subscriber struct {
	conn   *Conn
	queue  chan []byte
	topics []string // guarded by Pub.mu
}

// NewPub returns a Pub that keeps at most highWater messages for a slow subscriber and drops further ones, as
// ZeroMQ does. Zero means 1000.
func NewPub(highWater int) *Pub {
	if highWater <= 0 {
		highWater = 1000
	}
	return &Pub{highWater: highWater, subs: map[*subscriber]struct{}{}}
}

// Serve accepts subscribers from ln until ctx ends.
func (p *Pub) Serve(ctx context.Context, ln net.Listener) error {
	return Serve(ctx, ln, Params{Type: PUB}, p.handle)
}

// dial connects to a SUB socket that has bound endpoint and serves it until the connection or
// ctx ends.
func (p *Pub) dial(ctx context.Context, endpoint string) error {
	c, err := Dial(ctx, endpoint, Params{Type: PUB})
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	p.handle(ctx, c)
	return nil
}

// Send publishes one message to every subscriber with a topic that is a prefix of the first frame. It
// never blocks. The frames are copied.
func (p *Pub) Send(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	topic := string(frames[0])
	var wire []byte
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.subs {
		if !slices.ContainsFunc(s.topics, func(t string) bool { return strings.HasPrefix(topic, t) }) {
			continue
		}
		if wire == nil {
			wire = AppendMessage(nil, frames...)
		}
		select {
		case s.queue <- wire:
		default:
			p.dropped.Add(1)
		}
	}
}

// Subscriptions counts the subscriptions of all connected subscribers.
func (p *Pub) Subscriptions() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	n := 0
	for s := range p.subs {
		n += len(s.topics)
	}
	return n
}

// disconnect closes every connection.
func (p *Pub) disconnect() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.subs {
		s.conn.Close()
	}
}

func (p *Pub) handle(ctx context.Context, c *Conn) {
	s := &subscriber{conn: c, queue: make(chan []byte, p.highWater)}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() {
		defer c.Close() // a write that failed ends the reader too
		s.drain(ctx)
	})
	p.subscriptions(s)
	cancel()
	c.Close()
	writer.Wait()

	p.mu.Lock()
	delete(p.subs, s)
	p.mu.Unlock()
}

// drain writes queued messages, several to a write when they have piled up.
func (s *subscriber) drain(ctx context.Context) {
	var batch []byte
	for {
		select {
		case <-ctx.Done():
			return
		case wire := <-s.queue:
			batch = append(batch[:0], wire...)
		}
	more:
		for len(batch) < writeBuffer {
			select {
			case wire := <-s.queue:
				batch = append(batch, wire...)
			default:
				break more
			}
		}
		if err := s.conn.WriteEncoded(batch); err != nil {
			return // the reader sees the closed connection and cleans up
		}
	}
}

// subscriptions follows the subscriber's requests until the connection ends.
func (p *Pub) subscriptions(s *subscriber) {
	var m Message
	for s.conn.Recv(&m) == nil {
		if len(m.Frames) != 1 || len(m.Frames[0]) == 0 {
			continue
		}
		topic := string(m.Frames[0][1:])
		p.mu.Lock()
		switch m.Frames[0][0] {
		case 1:
			if len(s.topics) < maxTopics {
				s.topics = append(s.topics, topic)
			}
		case 0:
			if i := slices.Index(s.topics, topic); i >= 0 {
				s.topics = slices.Delete(s.topics, i, i+1)
			}
		}
		p.mu.Unlock()
	}
}
