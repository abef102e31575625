package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// reply is one message of a replay, or its end.
type reply struct {
	job uint64
	seq uint64
	by  sequence.Publisher
	msg *zmtp.Message
	end bool
	err error
}

func (r *reply) payload() []byte { return r.msg.Frames[len(r.msg.Frames)-1] }

// replay executes a request. The first one for all that an engine holds waits until DelayFirstReplays allows it.
func (f *feed) replay(r sequence.Request) {
	f.held = nil
	if r.First {
		if r.Why == sequence.WhyFirst && f.plane.delays(time.Now()) {
			f.held = &r
			return
		}
		f.journal.count(func(s *Status) { s.Replays++ })
		f.plane.metrics.Replays.Add(r.Why)
	}
	f.spawn(func(ctx context.Context) {
		sleep.For(ctx, r.After)
		err := f.fetch(ctx, r)
		f.reply(ctx, reply{job: r.Job, end: true, err: err})
	})
}

// replayHeld executes the request that waits, if it may and is still of use.
func (f *feed) replayHeld() {
	if r := f.held; r != nil && f.follower.state.Awaits(r.Job) && !f.plane.delays(time.Now()) {
		f.replay(*r)
	}
}

// fetch asks once and passes on the batches until the end marker.
func (f *feed) fetch(ctx context.Context, r sequence.Request) error {
	timeout := f.plane.config.ReplayTimeout
	params := f.plane.socket(zmtp.DEALER)
	params.HandshakeTimeout, params.Heartbeat = timeout, 0
	conn, err := zmtp.Dial(ctx, r.At, params)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	select { // only after dialling: dead sockets must not keep others waiting
	case f.plane.replays <- struct{}{}:
		defer func() { <-f.plane.replays }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, r.From)); err != nil {
		return err
	}
	for skipped := 0; ; skipped++ {
		conn.SetDeadline(time.Now().Add(timeout))
		m := f.plane.getMessage()
		if err := conn.Recv(m); err != nil {
			f.plane.putMessage(m)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("no answer for %v", timeout)
			}
			return err
		}
		n, ok := numberOf(m)
		if !ok {
			f.onMalformed(m)
			return errors.New("a reply without a number")
		}
		if n.seq == zmtp.EndOfReplay {
			f.plane.putMessage(m)
			return nil
		}
		if r.One && n.seq < r.From {
			f.plane.putMessage(m)
			if skipped > sequence.MaxUseless {
				return sequence.ErrUseless
			}
			continue
		}
		if !f.reply(ctx, reply{job: r.Job, seq: n.seq, by: n.by, msg: m}) {
			return ctx.Err()
		}
		if r.One {
			return nil
		}
	}
}

// reply hands r to the feed, waiting while too much is under way.
func (f *feed) reply(ctx context.Context, r reply) bool {
	if r.msg != nil && r.msg.Cap() > largeReply {
		for len(f.inbox.replies) > 0 && ctx.Err() == nil {
			sleep.For(ctx, time.Millisecond)
		}
	}
	select {
	case f.inbox.replies <- r:
		f.schedule()
		return true
	case <-ctx.Done():
		f.plane.putMessage(r.msg)
		return false
	}
}
