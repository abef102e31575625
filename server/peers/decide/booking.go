package decide

import (
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// progressEvery is how often a booking's progress is reported at most.
const progressEvery = time.Second

// booking is one request in flight at this frontend. It is its choice's Observer.
type booking struct {
	frontend *Frontend
	number   uint64
	suffix   string // of the reservation, where it is not the request's own
	pool     string
	asked    asked

	reported atomic.Int64 // when progress was sent last, in nanoseconds since 1970

	// Guarded by the frontend's mu.
	at        ID // the peer that knows it, empty for none
	choice    *chooser.Choice
	hashes    []blockhash.Hash
	origin    *Waiting // whose prompt the decider may have copied; nil where it may not
	prefilled bool
	sent      bool // a split request goes to the rank that reads the prompt's cache
	output    int
	ended     bool
}

// asked is the part of a request that a decider needs to book it.
type asked struct {
	model, session            string
	tokens, expected          int
	unstreamed, leased, quiet bool
}

func newBooking(f *Frontend, w *Waiting, number uint64) *booking {
	req := w.req
	return &booking{frontend: f, number: number, pool: w.pool, asked: asked{
		model: req.Model, session: req.Session, tokens: req.PromptTokens, expected: req.ExpectedOutput,
		unstreamed: req.Silent(), leased: req.Lease != 0, quiet: req.Quiet,
	}}
}

// enter notes a choice that was made, and says so to the router that decides for its pool; mu is held.
func (b *booking) enter(c *chooser.Choice, hashes func(int) []blockhash.Hash) {
	f := b.frontend
	if b.ended {
		return
	}
	b.keep(c, hashes)
	if to := f.decider(b.pool); to != f.params.Self {
		b.assign(to)
		f.sendBookings(to, false, []*booking{b})
	}
}

// begin notes a choice of a peer, and reports to the peer that it is used; mu is held.
func (b *booking) begin(c *chooser.Choice, hashes func(int) []blockhash.Hash, at ID) {
	if b.ended {
		return
	}
	b.keep(c, hashes)
	b.assign(at)
	b.frontend.params.Fleet.SendEvent(at, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Begin{Begin: b.number}})
}

// keep adds the booking to the requests in flight; mu is held.
func (b *booking) keep(c *chooser.Choice, hashes func(int) []blockhash.Hash) {
	b.choice = c
	if hashes != nil {
		b.hashes = hashes(int(c.Decision.Pick().BlockSize))
	}
	b.frontend.live[b.number] = b
}

// assign notes which peer knows the booking; mu is held.
func (b *booking) assign(to ID) {
	f := b.frontend
	if p := f.peers[b.at]; p != nil {
		p.bookings--
		p.sum ^= mix(b.number)
	}
	b.at = ""
	if p := f.peers[to]; p != nil {
		b.at = to
		p.bookings++
		p.sum ^= mix(b.number)
	}
}

// FirstToken implements chooser.Observer.
func (b *booking) FirstToken(_ time.Time, output int) {
	f := b.frontend
	f.mu.Lock()
	if b.prefilled = true; b.at != "" && !b.ended {
		f.params.Fleet.SendEvent(b.at, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_FirstToken{FirstToken: b.number}})
	}
	f.mu.Unlock()
	if output > 0 {
		b.Progress(output)
	}
}

// Progress implements chooser.Observer.
func (b *booking) Progress(output int) {
	f := b.frontend
	now, last := f.params.Clock.Now().UnixNano(), b.reported.Load()
	if now-last < int64(progressEvery) || !b.reported.CompareAndSwap(last, now) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.output = max(b.output, output); b.at != "" && !b.ended {
		f.params.Fleet.SendEvent(b.at, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Progress{
			Progress: &peerv1.Progress{Number: b.number, OutputTokens: uint32(max(0, b.output))},
		}})
	}
}

// Ended implements chooser.Observer.
func (b *booking) Ended(end *chooser.End) {
	f := b.frontend
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.ended {
		return
	}
	b.ended = true
	delete(f.live, b.number)
	if b.at != "" {
		f.params.Fleet.SendEvent(b.at, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_End{End: endOf(b.number, end.Result)}})
		b.assign("")
	}
}

// maxList is how many bookings one message has at most.
const maxList = 256

// sendBookings reports to a peer the bookings; mu is held. all: it forgets the others.
func (f *Frontend) sendBookings(to ID, all bool, list []*booking) {
	now := f.params.Clock.Now()
	for first := true; first || len(list) > 0; first = false {
		part := list[:min(len(list), maxList)]
		list = list[len(part):]
		msg := &peerv1.Bookings{All: all, More: len(list) > 0}
		for _, b := range part {
			msg.Bookings = append(msg.Bookings, b.proto(now))
		}
		f.metrics.handedOver(len(part))
		f.params.Fleet.SendEvent(to, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Bookings{Bookings: msg}})
	}
}

// proto describes the booking; the frontend's mu is held.
func (b *booking) proto(now time.Time) *peerv1.Booking {
	d, a := b.choice.Decision, &b.asked
	cand := d.Pick()
	out := &peerv1.Booking{
		Number: b.number, Id: d.ID + b.suffix, Attempt: uint32(d.Attempt), Tenant: text(d.Tenant), Model: text(a.model), Session: text(a.session),
		ReplicaId: text(cand.Replica), Rank: uint32(cand.Rank), PromptTokens: uint32(max(0, a.tokens)), UncachedTokens: cand.Uncached,
		PrefillS: cand.Prefill * (1 + cand.Slowdown), ExpectedOutput: uint32(max(0, a.expected)), OutputTokens: uint32(max(0, b.output)),
		Prefilled: b.prefilled, Unstreamed: a.unstreamed, Leased: a.leased, Quiet: a.quiet, Age: durationpb.New(max(0, now.Sub(d.At))),
	}
	split := d.Split() != nil && !b.prefilled // the rank computes nothing and, as yet, holds nothing of the prompt
	if split {
		out.UncachedTokens, out.PrefillS, out.Unstreamed, out.Quiet = 0, 0, true, a.quiet || !b.sent
	}
	if d.TooLong {
		out.PromptTokens, out.UncachedTokens, out.PrefillS = 0, 0, 0
	} else if b.hashes != nil && !split {
		out.Keys = keysOf(int(cand.BlockSize), b.hashes)
	}
	return out
}

// sendDrop voids a question or booking at a peer; mu is held.
func (f *Frontend) sendDrop(to ID, number uint64) {
	f.params.Fleet.SendEvent(to, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Drop{Drop: number}})
}
