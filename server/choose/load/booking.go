package load

import "time"

// booking is one attempt's time on one rank. Fields that change after the booking are guarded by the rank's mu,
// except the output, which the owner's lock guards.
type booking struct {
	owner  *Reservation
	rank   *rank
	links  [lists]link
	booked bool // is in the list of all

	bookedAt     int64
	promptTokens int
	prefill      prefill
	blocks       blocks

	node             *node    // the end of the prompt's hashed blocks in the rank's tree; nil when there are none
	prevEnd, nextEnd *booking // the bookings that end at the same node
}

// prefill is the uncached part of a prompt.
type prefill struct {
	tokens, nanos int64
	unstreamed    bool
	phase         phase
}

// phase is the state of a prefill.
type phase uint8

const (
	queued    phase = iota // it is to be done
	assumed                // over by its predicted time alone
	confirmed              // over, and so is the prefill of each unstreamed booking before it
)

// blocks are the KV blocks of a request.
type blocks struct {
	size     int64
	expected int64
	output   int64 // tokens
	// prompt counts the blocks of the prompt, its partial last one included; private the blocks that have no hash and so are never shared,
	// exclusive the hashed ones that no other booking uses now; begun the blocks begun by output.
	prompt, private, exclusive, begun int64
	weight                            int64 // of private, exclusive and begun; whole until output decays it
}

// maxPrefill caps one request's predicted prefill time, so that sums cannot overflow.
const maxPrefill = 24 * time.Hour

func (s *booking) fill(r *Reservation, rk *rank, req *Request, now int64) {
	*s = booking{
		owner: r, rank: rk, bookedAt: now, promptTokens: req.PromptTokens,
		prefill: prefill{tokens: int64(req.PrefillTokens), nanos: int64(min(max(req.PrefillTime, 0), maxPrefill)), unstreamed: req.Unstreamed},
		blocks:  blocks{size: int64(max(req.BlockSize, 0)), expected: int64(req.ExpectedTokens), weight: whole},
	}
	s.blocks.prompt = s.blocksAt(0)
}

// blocksAt is how many blocks the request fills after so many output tokens.
func (s *booking) blocksAt(output int64) int64 {
	size := s.blocks.size
	if size == 0 {
		return 0
	}
	return (int64(s.promptTokens) + output + size - 1) / size
}

// decay is the weight of a request that has produced output of the tokens expected of it.
func (b *blocks) decay(output int64) int64 {
	switch {
	case b.expected <= 0:
		return whole
	case output >= b.expected:
		return 0
	}
	return whole - output*whole/b.expected
}

// used are the blocks that the booking does not share.
func (b *blocks) used() int64 { return b.private + b.exclusive + b.begun }

// weighted are the blocks that the booking does not share, by their weight.
func (b *blocks) weighted() int64 { return b.weight * b.used() }

// The lists of a rank's bookings.
const (
	inAll   = iota // oldest first
	inQueue        // with prefill to do, first in line first
	lists
)

type link struct{ prev, next *booking }

// list is one of the lists.
type list struct {
	first, last *booking
	kind        int
}

func (l *list) push(s *booking) {
	s.links[l.kind] = link{prev: l.last}
	if l.last != nil {
		l.last.links[l.kind].next = s
	} else {
		l.first = s
	}
	l.last = s
}

func (l *list) drop(s *booking) {
	at := &s.links[l.kind]
	if at.prev != nil {
		at.prev.links[l.kind].next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		at.next.links[l.kind].prev = at.prev
	} else {
		l.last = at.prev
	}
	*at = link{}
}

// collect returns the bookings booked before the moment t.
func (l *list) collect(t int64) []*booking {
	var found []*booking
	for s := l.first; s != nil; s = s.links[l.kind].next {
		if s.bookedAt < t {
			found = append(found, s)
		}
	}
	return found
}
