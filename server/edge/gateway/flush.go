package gateway

import "time"

// apart is send on a goroutine of its own, for the first piece of a stream: net/http writes the
// header so deep that the stack of the request's goroutine would be doubled, and stay so for as
// long as the stream lasts (5 KB per idle stream).
func (rq *request) apart(p []byte) (err error) {
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = rq.send(p)
	}()
	<-done // write deadlines bound it
	if panicked != nil {
		panic(panicked) // where net/http expects it
	}
	return err
}

// send hands p to the connection.
func (rq *request) send(p []byte) error {
	if _, err := rq.w.Write(p); err != nil {
		return err
	}
	if rq.pushed {
		err := rq.control.Flush()
		rq.flushed()
		return err
	}
	return nil
}

// extend gives the client until the stall timeout to take what is written next.
func (rq *request) extend() {
	stall := rq.config.StallTimeout
	if stall <= 0 && rq.alive == nil {
		return
	}
	now := time.Now()
	if rq.alive != nil {
		rq.alive.last = now
	}
	if stall > 0 && now.Add(stall*3/4).After(rq.stallBy) {
		rq.stallBy = now.Add(stall)
		_ = rq.control.SetWriteDeadline(rq.stallBy) // unsupported by test writers only
	}
}

// flushed ends the time that the client has: the next piece may be long in coming.
func (rq *request) flushed() {
	if rq.multiplexed && !rq.stallBy.IsZero() {
		rq.stallBy = time.Time{}
		_ = rq.control.SetWriteDeadline(time.Time{}) // as in extend
	}
}
