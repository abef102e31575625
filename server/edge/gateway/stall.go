package gateway

import "time"

// extend gives the client until the stall timeout to take what is written next.
func (rq *request) extend() {
	stall := rq.config.StallTimeout
	if stall <= 0 {
		return
	}
	if now := time.Now(); now.Add(stall * 3 / 4).After(rq.stallBy) {
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
