package zmtp

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// maxPeers bounds the connections of one listener; more are closed at once.
const maxPeers = 1024

// Serve accepts connections from ln until ctx ends, shakes hands with each and calls handle in a
// goroutine of its own. It closes a connection when its handle returns, and ln and all
// connections when ctx ends; it returns after the last handle has. The error is nil when ctx
// ended, else why the listener failed. Peers that fail the handshake are dropped.
func Serve(ctx context.Context, ln net.Listener, p Params, handle func(context.Context, *Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var peers sync.WaitGroup
	defer peers.Wait()
	defer cancel() // before Wait: handles end with the context
	stop := context.AfterFunc(ctx, func() { hangUp(ln) })
	defer stop()
	defer hangUp(ln)

	room := make(chan struct{}, maxPeers)
	for {
		nc, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if temporary(err) {
				sleep.For(ctx, 50*time.Millisecond) // out of descriptors: others may be released
				continue
			}
			return err
		}
		select {
		case room <- struct{}{}:
		default:
			hangUp(nc)
			continue
		}
		peers.Go(func() {
			defer func() { <-room }()
			c, err := shakeHands(ctx, nc, p)
			if err != nil {
				return // a port scan, a wrong socket type: nothing that the owner of ln can mend
			}
			defer c.Close()
			stop := context.AfterFunc(ctx, c.Close)
			defer stop()
			handle(ctx, c)
		})
	}
}

// temporary reports whether Accept may succeed later.
func temporary(err error) bool {
	var ne interface{ Temporary() bool }
	return !errors.Is(err, net.ErrClosed) && errors.As(err, &ne) && ne.Temporary()
}
