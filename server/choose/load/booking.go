package load

import "time"

// booking is one attempt's time on one rank. What changes after it was booked is guarded by the
// rank's mu, except output, which the owner's lock guards.
type booking struct {
	owner *Reservation
	rank  *rank

	prev, next   *booking // among all of the rank
	prevQ, nextQ *booking // among those with prefill to do
	booked       bool     // is among all
	queued       bool     // has prefill to do

	bookedAt      int64
	promptTokens  int
	prefillTokens int64
	prefillNanos  int64
	unstreamed    bool
	assumed       bool // its prefill is over by its predicted time alone
	confirmed     bool // its prefill is over, and so is that of each unstreamed one before it

	blockSize    int64
	expected     int64
	output       int64 // tokens
	promptBlocks int64 // blocks of the prompt, its partial last one included
	private      int64 // blocks of the prompt that have no hash and so are never shared
	exclusive    int64 // hashed blocks of the prompt that no other booking uses now
	outputBlocks int64 // blocks begun by output
	weight       int64 // of private, exclusive and outputBlocks; whole until output decays it

	node             *node    // the end of the prompt's hashed blocks in the rank's tree; nil when there are none
	prevEnd, nextEnd *booking // the bookings that end at the same node
}

// maxPrefill caps one request's predicted prefill time, so that sums cannot overflow.
const maxPrefill = 24 * time.Hour

func (s *booking) fill(r *Reservation, rk *rank, req *Request, now int64) {
	*s = booking{
		owner: r, rank: rk, bookedAt: now, promptTokens: req.PromptTokens,
		prefillTokens: int64(req.PrefillTokens),
		prefillNanos:  int64(min(max(req.PrefillTime, 0), maxPrefill)),
		unstreamed:    req.Unstreamed,
		blockSize:     int64(max(req.BlockSize, 0)), expected: int64(req.ExpectedTokens), weight: whole,
	}
	s.promptBlocks = s.blocksAt(0)
}

// blocksAt is how many blocks the request fills after so many output tokens.
func (s *booking) blocksAt(output int64) int64 {
	if s.blockSize == 0 {
		return 0
	}
	return (int64(s.promptTokens) + output + s.blockSize - 1) / s.blockSize
}

// decay is the weight of a request that has produced output of the tokens expected of it.
func (s *booking) decay(output int64) int64 {
	switch {
	case s.expected <= 0:
		return whole
	case output >= s.expected:
		return 0
	}
	return whole - output*whole/s.expected
}

// own are the blocks that the booking does not share.
func (s *booking) own() int64 { return s.private + s.exclusive + s.outputBlocks }

// allList is a rank's list of bookings, oldest first.
type allList struct{ first, last *booking }

func (l *allList) push(s *booking) {
	s.booked, s.prev, s.next = true, l.last, nil
	if l.last != nil {
		l.last.next = s
	} else {
		l.first = s
	}
	l.last = s
}

func (l *allList) drop(s *booking) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.last = s.prev
	}
	s.booked, s.prev, s.next = false, nil, nil
}

// collect returns the bookings booked before the moment t.
func (l *allList) collect(t int64) []*booking {
	var found []*booking
	for s := l.first; s != nil; s = s.next {
		if s.bookedAt < t {
			found = append(found, s)
		}
	}
	return found
}

// preList is a rank's prefill queue, first in line first.
type preList struct{ first, last *booking }

func (l *preList) push(s *booking) {
	s.prevQ, s.nextQ = l.last, nil
	if l.last != nil {
		l.last.nextQ = s
	} else {
		l.first = s
	}
	l.last = s
}

func (l *preList) drop(s *booking) {
	if s.prevQ != nil {
		s.prevQ.nextQ = s.nextQ
	} else {
		l.first = s.nextQ
	}
	if s.nextQ != nil {
		s.nextQ.prevQ = s.prevQ
	} else {
		l.last = s.prevQ
	}
	s.prevQ, s.nextQ = nil, nil
}
