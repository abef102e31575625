package tunnel

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// The ends of a tunnel. Its cause is joined from one of them and the error of the connection, or the context's.
var (
	ErrIdle       = errors.New("no traffic for the idle timeout")
	ErrReplicaEnd = errors.New("the replica ended the connection")
	errClientEnd  = errors.New("the client ended the connection")
)

// Pass passes the bytes of both ends, until one of them leaves, ctx ends, or nothing passes for idle (0: for any time); then both are
// closed. alive is called for each piece that comes from there. It returns the cause of the end, and whether one of the two had sent the
// message that closes a WebSocket.
func Pass(ctx context.Context, idle time.Duration, alive func(), here, there io.ReadWriteCloser) (cause error, closed bool) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop := context.AfterFunc(ctx, func() { // wakes readers and writers
		_ = here.Close() // both ends are done
		_ = there.Close()
	})
	defer stop()
	passed := func() {}
	if idle > 0 {
		timer := time.AfterFunc(idle, func() { end(ErrIdle) })
		defer timer.Stop()
		passed = func() { timer.Reset(idle) }
	}
	var sent, received closing
	var up sync.WaitGroup
	up.Go(func() {
		read, err := pour(there, here, &sent, passed)
		switch {
		case read:
			end(errors.Join(errClientEnd, err))
		default:
			end(errors.Join(ErrReplicaEnd, err))
		}
	})
	read, err := pour(here, there, &received, func() { passed(); alive() })
	switch {
	case read:
		end(errors.Join(ErrReplicaEnd, err))
	default:
		end(errors.Join(errClientEnd, err))
	}
	up.Wait()
	return context.Cause(ctx), sent.seen || received.seen
}

// pourBuffer is the size of a read: two are held by each WebSocket, however long it rests.
const pourBuffer = 8 << 10

// pour passes on the bytes of from until one of the two ends; read says that it was from. Each piece is noted.
func pour(to io.Writer, from io.Reader, said *closing, alive func()) (read bool, err error) {
	buf := make([]byte, pourBuffer)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			alive()
			said.feed(buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				return false, err
			}
		}
		if err != nil {
			return true, err
		}
	}
}
