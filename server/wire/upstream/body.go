package upstream

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// next implements body.
func (a *responseBody) next() ([]byte, error) {
	if a.ended != nil {
		return nil, a.ended
	}
	for {
		if a.r < a.w {
			body, err := a.decode()
			if body != nil || err != nil {
				return body, err
			}
		}
		if err := a.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads once into the empty buffer.
func (a *responseBody) fill() error {
	if a.w == smallBuffer { // the last read filled it
		a.large = true
		putBuffer(a.buf)
		a.buf = nil
	}
	a.r, a.w = 0, 0
	if a.cfg.StallTimeout > 0 {
		a.conn.limit(a.cfg.StallTimeout)
	}
	n, err := a.read()
	if n > 0 {
		a.w = n
		return nil
	}
	if err == nil {
		return nil
	}
	if atEnd(err) && a.frame.UntilClose() {
		a.finish(true)
		return a.ended
	}
	switch {
	case atEnd(err):
		err = io.ErrUnexpectedEOF
	case isTimeout(err) && a.ctx.Err() == nil:
		err = errStalled
	}
	a.ended = failed(a.ctx, a.id, phaseBody, err)
	a.abort()
	return a.ended
}

// room is the buffer to read into.
func (a *responseBody) room() []byte {
	if a.buf == nil {
		size := smallBuffer
		if a.large {
			size = largeBuffer
		}
		a.buf = getBuffer(size)
	}
	return a.buf.b
}

// decode takes the framing out of the bytes read. No bytes and no error mean: read on.
func (a *responseBody) decode() ([]byte, error) {
	from := a.r
	n, used, err := a.frame.Decode(a.buf.b[a.r:a.w])
	a.r += used
	if err != nil {
		a.ended = &requestError{replica: a.id, phase: phaseBody, err: err}
		a.abort()
		return nil, a.ended
	}
	if a.frame.Complete() {
		a.finish(a.r < a.w)
	}
	if n > 0 {
		return a.buf.b[from : from+n], nil
	}
	return nil, a.ended
}

// finish ends a response that is complete. The connection serves the next request, unless
// the replica sent more than the response or asked to close.
func (a *responseBody) finish(extra bool) {
	a.ended = io.EOF
	c := a.conn
	a.conn = nil
	aborted := !a.stop()
	if extra || a.broken || aborted {
		c.shut()
		return
	}
	c.limit(0)
	c.host.give(c, time.Now(), a.cfg.MaxIdlePerReplica)
}

// abort closes the connection of a response that is not complete.
func (a *responseBody) abort() {
	if a.conn == nil {
		return
	}
	a.stop()
	a.conn.shut()
	a.conn = nil
}

// close implements body.
func (a *responseBody) close() {
	a.abort()
	if a.ended == nil || atEnd(a.ended) {
		a.ended = errClosed
	}
	if a.buf != nil {
		putBuffer(a.buf)
		a.buf = nil
	}
}

var errClosed = errors.New("the response is closed")

// errStalled ends a response of which nothing came for too long.
var errStalled = errors.New("no bytes within the stall timeout")

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
