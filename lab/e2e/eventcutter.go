package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync/atomic"
)

// eventCutter stands before engines and cuts the next stream after so many of its events.
type eventCutter struct {
	// left is the number of events of the next stream; 0 cuts none.
	left atomic.Int64
	// streams counts the requests for streams.
	streams atomic.Int64
}

// cut has the next stream end after so many events.
func (c *eventCutter) cut(events int64) { c.left.Store(events) }

// spared reports whether no stream was requested since the last cut, and takes the cut back.
func (c *eventCutter) spared() bool { return c.left.Swap(0) != 0 }

// serve passes bytes both ways, until a stream has the last event that it may have.
func (c *eventCutter) serve(ctx context.Context, from net.Conn, port string) {
	defer from.Close()
	to, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil {
		return
	}
	defer to.Close()
	var limit atomic.Int64 // the events left to the stream under way; 0: all
	go func() {
		defer to.Close() // ends the other half
		var seen []byte
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			// A body may come in several pieces, behind its head.
			if seen = append(seen, b[:n]...); bytes.Contains(seen, []byte(`"stream":true`)) {
				c.streams.Add(1)
				limit.Store(c.left.Swap(0))
				seen = nil
			}
			seen = seen[max(0, len(seen)-16):]
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}()
	b := make([]byte, 64<<10)
	var tail byte
	for {
		n, err := to.Read(b)
		cut := false
		for i := range n {
			if b[i] == '\n' && tail == '\n' && limit.Load() > 0 && limit.Add(-1) == 0 {
				n, cut = i+1, true
				break
			}
			tail = b[i]
		}
		if _, werr := from.Write(b[:n]); err != nil || werr != nil || cut {
			return
		}
	}
}

// behindCutter starts a router with further settings, whose two replicas are engines behind a cutter until ctx ends. It rests no replica for its cuts.
func (r *disturbances) behindCutter(ctx context.Context, name, settings string) (*routerProcess, *eventCutter, error) {
	c := new(eventCutter)
	front := make([]string, 2)
	for i := range front {
		var err error
		if front[i], err = listenBefore(ctx, strconv.Itoa(r.engines[i%len(r.engines)].http), c.serve); err != nil {
			return nil, nil, err
		}
	}
	p, err := r.another(ctx, name, front, settings+"chooser: {policy: round-robin}\nupstream: {breaker: {failures: 0, min_requests: 1000000}}\n")
	return p, c, err
}
