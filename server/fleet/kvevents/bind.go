package kvevents

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// binder is a socket of ours that engines dial. Several ranks may share it; the topic
// distinguishes them.
type binder struct {
	plane    *Plane
	endpoint string
	cancel   context.CancelFunc

	mu    sync.Mutex
	feeds []*feed                 // guarded by mu
	conns map[*zmtp.Conn]struct{} // guarded by mu
}

// bind makes f a user of its endpoint's binder, which begins with its first user.
func (p *Plane) bind(f *feed) {
	p.mu.Lock()
	b := p.binders[f.events.Endpoint]
	fresh := b == nil
	if fresh {
		b = &binder{plane: p, endpoint: f.events.Endpoint, conns: map[*zmtp.Conn]struct{}{}}
		p.binders[f.events.Endpoint] = b
	}
	p.mu.Unlock()

	b.mu.Lock()
	if i := slices.IndexFunc(b.feeds, func(other *feed) bool { return other.events.Topic == f.events.Topic }); i >= 0 {
		f.journal.note("rank " + b.feeds[i].journal.label + " has the same socket and topic: their events cannot be distinguished")
		p.log.Error("two ranks share an event socket and a topic", "rank", f.journal.label, "other", b.feeds[i].journal.label, "endpoint", b.endpoint, "topic", f.events.Topic)
	}
	b.feeds = append(b.feeds, f)
	conns := make([]*zmtp.Conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	b.mu.Unlock()
	for _, c := range conns {
		if c.Subscribe(f.events.Topic) != nil {
			c.Close() // the engine dials again and gets every subscription
		}
	}
	if fresh {
		ctx, cancel := p.life()
		b.cancel = cancel
		p.running.Go(func() { b.run(ctx) })
	}
}

// unbind removes f from its binder, which ends with its last user.
func (p *Plane) unbind(f *feed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.binders[f.events.Endpoint]
	if b == nil {
		return
	}
	b.mu.Lock()
	b.feeds = slices.DeleteFunc(b.feeds, func(other *feed) bool { return other == f })
	last := len(b.feeds) == 0
	b.mu.Unlock()
	if last {
		delete(p.binders, f.events.Endpoint)
		b.cancel()
	}
}

// run listens until ctx ends and retries after errors.
func (b *binder) run(ctx context.Context) {
	pause := reconnectMin
	for ctx.Err() == nil {
		ln, err := zmtp.Listen(ctx, b.endpoint)
		if err == nil {
			pause = reconnectMin
			err = zmtp.Serve(ctx, ln, b.plane.socket(zmtp.SUB), b.follow)
		}
		if ctx.Err() != nil {
			return
		}
		for _, f := range b.users() {
			f.journal.note(err.Error())
		}
		b.plane.log.Warn("KV event socket cannot be bound", "endpoint", b.endpoint, "error", err)
		sleep.For(ctx, pause)
		pause = min(2*pause, max(b.plane.config.ReconnectMax, reconnectMin))
	}
}

func (b *binder) users() []*feed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.feeds)
}

// follow reads from one engine and hands each batch to the rank with the longest matching topic.
func (b *binder) follow(ctx context.Context, conn *zmtp.Conn) {
	b.mu.Lock()
	b.conns[conn] = struct{}{}
	users := slices.Clone(b.feeds)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.conns, conn)
		b.mu.Unlock()
	}()
	epochs := map[*feed]uint64{} // of the ranks that this engine has shown to be
	for _, f := range users {
		if conn.Subscribe(f.events.Topic) != nil {
			return
		}
	}
	if len(users) == 1 {
		epochs[users[0]] = users[0].connected(users[0].events, "") // no other feed can be meant
	}
	err := b.plane.receive(conn, func(m *zmtp.Message, n numbered, ok bool) {
		f := b.route(m)
		if f == nil {
			b.plane.putMessage(m)
			return
		}
		if !ok {
			f.onMalformed(m)
			return
		}
		epoch, known := epochs[f]
		if !known {
			epoch = f.connected(f.events, "")
			epochs[f] = epoch
		}
		f.deliver(ctx, epoch, n, m)
	})
	for f, epoch := range epochs {
		f.disconnected(epoch, err)
	}
}

// route finds the rank that a message is for.
func (b *binder) route(m *zmtp.Message) *feed {
	var topic []byte
	if len(m.Frames) > 2 {
		topic = m.Frames[0]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var best *feed
	for _, f := range b.feeds {
		if bytes.HasPrefix(topic, []byte(f.events.Topic)) && (best == nil || len(f.events.Topic) > len(best.events.Topic)) {
			best = f
		}
	}
	return best
}
