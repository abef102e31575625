package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

const (
	reconnectMin  = 50 * time.Millisecond
	stable        = 10 * time.Second // a connection that lived so long ends the back-off
	keepMessage   = 64 << 10         // larger buffers are not reused
	largeReply    = 256 << 10
	maxReplies    = 64
	sequenceBytes = 8
)

// numbered is the content of the frame before the payload.
type numbered struct {
	seq uint64
	by  sequence.Publisher
}

// dialLoop keeps a connection to the engine's event socket until ctx ends.
func (f *feed) dialLoop(ctx context.Context) {
	params := f.plane.socket(zmtp.SUB)
	pause := reconnectMin
	for ctx.Err() == nil {
		began := time.Now()
		err := f.connect(ctx, params)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > stable {
			pause = reconnectMin
		}
		f.journal.note(err.Error())
		sleep.For(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, max(f.plane.config.ReconnectMax, reconnectMin))
	}
}

// connect finds the event socket, dials it and follows it until the connection ends.
func (f *feed) connect(ctx context.Context, params zmtp.Params) error {
	if !viaControl(f.events.Endpoint) {
		conn, err := zmtp.Dial(ctx, f.events.Endpoint, params)
		if err != nil {
			return err
		}
		return f.follow(ctx, conn, f.events, "")
	}
	c, err := dialControl(f.events.Endpoint)
	if err != nil {
		return err
	}
	defer c.close()
	sockets, err := c.sockets(ctx, f.events.Rank, f.events.Topic)
	if err != nil {
		return err
	}
	if sockets.Replay == "" {
		sockets.Replay = f.events.Replay
	}
	conn, err := zmtp.Dial(ctx, sockets.Endpoint, params)
	if err != nil {
		return err
	}
	return f.follow(ctx, conn, sockets, c.instance(ctx))
}

// follow subscribes and queues the messages until the connection ends.
func (f *feed) follow(ctx context.Context, conn *zmtp.Conn, sockets replica.Events, instance string) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if err := conn.Subscribe(sockets.Topic); err != nil {
		return err
	}
	epoch := f.connected(sockets, instance)
	err := f.plane.receive(conn, func(m *zmtp.Message, n numbered, ok bool) {
		if !ok {
			f.onMalformed(m)
			return
		}
		f.deliver(ctx, epoch, n, m)
	})
	f.disconnected(epoch, err)
	return err
}

// receive reads messages from conn until it fails. deliver owns the message; ok is false when it is no batch.
func (p *Plane) receive(conn *zmtp.Conn, deliver func(m *zmtp.Message, n numbered, ok bool)) error {
	for {
		m := p.getMessage()
		if err := conn.Recv(m); err != nil {
			p.putMessage(m)
			return err
		}
		n, ok := numberOf(m)
		ok = ok && n.seq != zmtp.EndOfReplay
		if !ok {
			p.metrics.Malformed.Add(background, 1)
		}
		deliver(m, n, ok)
	}
}

// numberOf reads the number of a batch: the frame before the last, whatever comes before it. The name
// of the publisher may follow the number.
func numberOf(m *zmtp.Message) (n numbered, ok bool) {
	last := len(m.Frames)
	if last < 2 {
		return n, false
	}
	frame := m.Frames[last-2]
	switch len(frame) {
	case sequenceBytes:
	case sequenceBytes + len(n.by):
		copy(n.by[:], frame[sequenceBytes:])
	default:
		return n, false
	}
	n.seq = binary.BigEndian.Uint64(frame)
	return n, true
}

// onMalformed handles a message that is no batch: a batch may be lost with it, so the known blocks are only a lower bound
// from now on.
func (f *feed) onMalformed(m *zmtp.Message) {
	sizes := make([]int, 0, len(m.Frames))
	for _, frame := range m.Frames {
		sizes = append(sizes, len(frame))
	}
	f.plane.putMessage(m)
	f.journal.count(func(s *Status) { s.Malformed++ })
	f.journal.note(fmt.Sprintf("a message without a batch number: frames of %v bytes", sizes))
	f.journal.warn(oddFrames, "KV event messages without a batch number are dropped", "frame_bytes", sizes)
	f.inbox.malformedDue.Store(true)
	f.schedule()
}

// connected notifies the feed of a new connection and numbers it.
func (f *feed) connected(sockets replica.Events, instance string) (epoch uint64) {
	epoch = f.epochs.Add(1)
	f.inbox.queue.push(item{kind: itemUp, epoch: epoch, at: time.Now(), made: &made{sockets, instance}}, nil)
	f.schedule()
	return epoch
}

func (f *feed) disconnected(epoch uint64, err error) {
	f.inbox.queue.push(item{kind: itemDown, epoch: epoch, at: time.Now(), err: err}, nil)
	f.schedule()
}

// deliver queues a batch. Where there is no room it waits until there is, and ctx ends the wait: unread batches stay in the sockets'
// buffers and then in the engine, which drops batches beyond its high-water mark. Replays fetch that.
func (f *feed) deliver(ctx context.Context, epoch uint64, n numbered, m *zmtp.Message) {
	it := item{kind: itemLive, epoch: epoch, seq: n.seq, by: n.by, msg: m, at: time.Now()}
	size := it.bytes()
	all := f.plane.queued.Add(size)
	fits := func(queued int64) bool {
		return queued+size <= f.plane.perFeed && all <= int64(f.plane.config.QueueBytes)
	}
	done := f.inbox.queue.push(it, fits)
	if done == pushFull {
		f.journal.count(func(s *Status) { s.Pauses++ })
		f.plane.metrics.Pauses.Add(background, 1)
		done = f.wait(ctx, it, size)
	}
	if done == pushShut {
		f.plane.queued.Add(-size)
		f.plane.putMessage(m)
		return
	}
	if !f.inbox.waiting.Load() {
		f.schedule()
	}
}

// wait queues a batch that found no room, once there is.
func (f *feed) wait(ctx context.Context, it item, size int64) pushed {
	fits := func(queued int64) bool {
		return queued+size <= f.plane.perFeed && f.plane.queued.Load() <= int64(f.plane.config.QueueBytes)
	}
	for {
		select {
		case <-ctx.Done():
			return pushShut
		case <-f.inbox.queue.room:
		}
		if done := f.inbox.queue.push(it, fits); done != pushFull {
			f.inbox.queue.wake() // others may wait as well
			return done
		}
	}
}

// socket gives the parameters of an outgoing connection.
func (p *Plane) socket(t zmtp.SocketType) zmtp.Params {
	return zmtp.Params{Type: t, MaxMessage: int(p.config.MaxMessageBytes), Heartbeat: p.config.Heartbeat}
}

func (p *Plane) getMessage() *zmtp.Message { return p.messages.Get().(*zmtp.Message) }

func (p *Plane) putMessage(m *zmtp.Message) {
	if m != nil && m.Cap() <= keepMessage {
		p.messages.Put(m)
	}
}
