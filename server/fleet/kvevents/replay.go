package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// reply is one message of a replay, or its end.
type reply struct {
	job uint64
	seq uint64
	by  publisher
	msg *zmtp.Message
	end bool
	err error
}

func (r *reply) payload() []byte { return r.msg.Frames[len(r.msg.Frames)-1] }

// request is one question to a replay socket: for all batches from a number on, or for the first one of them. Replies carry job.
type request struct {
	at        string
	job, from uint64
	one       bool
}

// replay sends a request after a delay.
func (f *feed) replay(r request, delay time.Duration) {
	f.spawn(func(ctx context.Context) {
		sleep(ctx, delay)
		err := f.fetch(ctx, r)
		f.reply(ctx, reply{job: r.job, end: true, err: err})
	})
}

// fetch asks once and passes on what comes until the end marker.
func (f *feed) fetch(ctx context.Context, r request) error {
	timeout := f.plane.config.ReplayTimeout
	params := f.plane.socket(zmtp.DEALER)
	params.HandshakeTimeout, params.Heartbeat = timeout, 0
	conn, err := zmtp.Dial(ctx, r.at, params)
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
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, r.from)); err != nil {
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
		n, ok := sequence(m)
		if !ok {
			f.onMalformed(m)
			return errors.New("a reply without a number")
		}
		if n.seq == zmtp.EndOfReplay {
			f.plane.putMessage(m)
			return nil
		}
		if r.one && n.seq < r.from {
			f.plane.putMessage(m)
			if skipped > maxUseless {
				return errUseless
			}
			continue
		}
		if !f.reply(ctx, reply{job: r.job, seq: n.seq, by: n.by, msg: m}) {
			return ctx.Err()
		}
		if r.one {
			return nil
		}
	}
}

// reply hands r to the feed, waiting while too much is under way.
func (f *feed) reply(ctx context.Context, r reply) bool {
	if r.msg != nil && r.msg.Cap() > largeReply {
		for len(f.replies) > 0 && ctx.Err() == nil {
			sleep(ctx, time.Millisecond)
		}
	}
	select {
	case f.replies <- r:
		f.schedule()
		return true
	case <-ctx.Done():
		f.plane.putMessage(r.msg)
		return false
	}
}
