package upstream

import (
	"errors"
	"io"
	"net"
	"os"
)

// next implements body.
func (a *leanBody) next() ([]byte, error) {
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
func (a *leanBody) fill() error {
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
	if err == io.EOF && a.frame.UntilClose() { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is a response that was cut off
		a.finish(true)
		return a.ended
	}
	switch {
	case err == io.EOF: //nolint:errorlint // the plain io.EOF is the end; a wrapped one is a response that was cut off
		err = io.ErrUnexpectedEOF
	case isTimeout(err) && a.ctx.Err() == nil:
		err = errStalled
	}
	a.ended = failed(a.ctx, a.id, phaseBody, err)
	a.abort()
	return a.ended
}

// room is the buffer to read into.
func (a *leanBody) room() []byte {
	if a.buf == nil {
		size := smallBuffer
		if a.large {
			size = largeBuffer
		}
		a.buf = getBuffer(size)
	}
	return a.buf.b
}

// decode takes the framing out of what was read. No bytes and no error mean: read on.
func (a *leanBody) decode() ([]byte, error) {
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
func (a *leanBody) finish(extra bool) {
	a.ended = io.EOF
	c := a.conn
	a.conn = nil
	aborted := !a.stop()
	if extra || a.broken || aborted {
		c.shut()
		return
	}
	c.limit(0)
	c.host.give(c, a.lean.now(), a.cfg.MaxIdlePerReplica)
}

// abort closes the connection of a response that is not complete.
func (a *leanBody) abort() {
	if a.conn == nil {
		return
	}
	a.stop()
	a.conn.shut()
	a.conn = nil
}

// close implements body.
func (a *leanBody) close() {
	a.abort()
	if a.ended == nil || a.ended == io.EOF { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is a response that was cut off
		a.ended = errClosed
	}
	if a.buf != nil {
		putBuffer(a.buf)
		a.buf = nil
	}
}

var errClosed = errors.New("the response is closed")

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
