package liveness

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Request is one request in flight on a rank. Its owner fills the exported fields before Enter or Lend.
type Request struct {
	// Owner is the owner's reference to itself.
	Owner any
	// At is when the request was booked.
	At time.Time
	// Prefill is the predicted prefill time, Decode the time of the longest answer, in seconds.
	Prefill, Decode float64
	// FullStep is the time of an engine step that is full of prefill, in seconds.
	FullStep float64
	// Streamed is set when the tokens of the answer are seen as they come.
	Streamed bool
	// Movable is set when another replica could serve the request, Withdrawable when its owner can withdraw it.
	Movable, Withdrawable bool

	prefilled atomic.Bool
	// heard is set by progress of this request and reset by Quiet; resumable while another replica could continue its stream.
	heard, resumable atomic.Bool
	quiet            time.Duration // without progress, as Quiet last saw; guarded by the Monitor's mu
	prev, next       *Request      // guarded by the Monitor's mu
}

// Sign notes progress of the request.
func (r *Request) Sign() {
	if !r.heard.Load() {
		r.heard.Store(true)
	}
}

// SetResumable notes whether another replica could continue the request's stream from where it is now.
func (r *Request) SetResumable(yes bool) { r.resumable.Store(yes) }

// Resumable returns the last value of SetResumable.
func (r *Request) Resumable() bool { return r.resumable.Load() }

// Prefilled notes that the prompt is computed and reports whether it was noted before.
func (r *Request) Prefilled() (before bool) { return r.prefilled.Swap(true) }

// reportAfter is the least age at which an engine must report a request. vLLM's gauges change with its steps, so a
// request with a longer first step has twice that step's time.
const reportAfter = 500 * time.Millisecond

// due is when the engine must report the request.
func (r *Request) due() time.Time {
	return r.At.Add(max(reportAfter, seconds(2*min(r.FullStep, r.Prefill))))
}

// Enter and Leave keep the list of requests in flight.
func (m *Monitor) Enter(r *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.next = m.first; m.first != nil {
		m.first.prev = r
	}
	m.first = r
	m.inFlight.Add(1)
}

// Leave ends the request's time that Enter began.
func (m *Monitor) Leave(r *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		m.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	m.inFlight.Add(-1)
}

// Lend adds a booking that an external caller has yet to send.
func (m *Monitor) Lend(r *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lent == nil {
		m.lent = map[*Request]struct{}{}
	}
	m.lent[r] = struct{}{}
}

// Settle removes it: it was reported on, has ended or was found missing.
func (m *Monitor) Settle(r *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.lent, r)
}

// Missing lists the lent bookings with requests that the engine does not report, the oldest first, and reports whether newer Vitals
// are needed to know. It is lenient: any request that runs may be any of them.
func (m *Monitor) Missing(v *Vitals, now time.Time) (list []*Request, ask bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lent) == 0 || v.Counted.IsZero() {
		return nil, false
	}
	missing := -v.Requests
	for r := m.first; r != nil; r = r.next {
		if v.Counted.Sub(r.At) >= reportAfter {
			missing++
		}
	}
	for r := range m.lent {
		switch due := r.due(); {
		case !v.Counted.Before(due):
			missing++
			list = append(list, r)
		case !now.Before(due):
			ask = true
		}
	}
	slices.SortFunc(list, func(a, b *Request) int { return cmp.Compare(a.At.UnixNano(), b.At.UnixNano()) })
	return list[:min(max(missing, 0), len(list))], ask
}

// Movable lists the requests that should leave the rank: requests without an answer, and streams that can be resumed, once it has
// been silent for as long after the verdict as moving them costs, or sooner from a halted rank; or every one, when all is set.
func (m *Monitor) Movable(all bool) []*Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	resumable, halted := resumeAfter, m.Evidence() == Halted
	if halted { // longer silence shows nothing more
		resumable = moveAfter
	}
	var list []*Request
	for r := m.first; r != nil; r = r.next {
		cost := seconds(r.Prefill / 2)
		if halted {
			cost = 0
		}
		if r.Withdrawable && (all || r.Movable && m.over >= max(moveAfter, cost) || r.Resumable() && m.over >= max(resumable, cost)) {
			list = append(list, r)
		}
	}
	return list
}

// Unbegun lists the requests that another replica could serve from their beginning; which of them have begun, their owners know.
func (m *Monitor) Unbegun() []*Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*Request
	for r := m.first; r != nil; r = r.next {
		if r.Withdrawable && r.Movable {
			list = append(list, r)
		}
	}
	return list
}

// Quiet lists the streams that can be resumed elsewhere and made no progress for the time limit, whatever the rest of the rank does.
// It looks once a second: passed is the time since the call before.
func (m *Monitor) Quiet(passed, limit time.Duration) []*Request {
	if m.unlooked += passed; m.unlooked < time.Second {
		return nil
	}
	passed, m.unlooked = m.unlooked, 0
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*Request
	for r := m.first; r != nil; r = r.next {
		if r.heard.Swap(false) || !r.Resumable() {
			r.quiet = 0
			continue
		}
		if r.quiet += passed; r.quiet >= limit && r.Withdrawable {
			list = append(list, r)
		}
	}
	return list
}

// longest is the longest time in seconds that the next progress may take: the longest prefill that is not over, and the
// longest answer where the tokens are not seen.
func (m *Monitor) longest(blind bool) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	longest := 0.0
	for r := m.first; r != nil; r = r.next {
		predicted := r.Prefill
		if r.prefilled.Load() {
			predicted = 0
		}
		if blind && !r.Streamed {
			predicted += r.Decode
		}
		longest = max(longest, predicted)
	}
	return longest
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
