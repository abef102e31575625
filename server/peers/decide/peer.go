package decide

import (
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// peer is another router as this frontend sees it. The frontend's mu guards it.
type peer struct {
	id      ID
	ability peerv1.Ability
	up      bool
	silent  bool
	heard   time.Time // when it said something last

	pings, pongs uint64
	pinged       time.Time // when the oldest ping without an answer was sent
	roundTrip    time.Duration
	nextPing     time.Time

	bookings uint32 // this frontend's bookings that it knows, and the sum of their mixed numbers
	sum      uint64
}

// answers reports whether the peer can be asked.
func (p *peer) answers() bool { return p.up && !p.silent }

// quietFactor is how many times Config.Patience a peer may be silent until it is not asked any more.
const quietFactor = 5

// idlePing is the time between pings to a peer that is asked nothing.
const idlePing = time.Second

// Up notes that events sent to the peer arrive from now on, in order, and that it knows nothing yet.
func (f *Frontend) Up(id ID, ability peerv1.Ability) {
	now := f.params.Clock.Now()
	f.mu.Lock()
	f.forget(id)
	f.peers[id] = &peer{id: id, up: true, ability: ability, heard: now, nextPing: now.Add(idlePing)}
	f.sendBookings(id, true, nil)
	moved := f.rebalance()
	f.mu.Unlock()
	f.move(moved)
}

// Down notes that the connection to the peer broke.
func (f *Frontend) Down(id ID) {
	f.mu.Lock()
	f.forget(id)
	delete(f.peers, id)
	moved := f.rebalance()
	f.mu.Unlock()
	f.move(moved)
}

// forget notes that the peer knows no booking; mu is held.
func (f *Frontend) forget(id ID) {
	if f.peers[id] == nil {
		return
	}
	for _, b := range f.live {
		if b.at == id {
			b.assign("")
		}
	}
	for _, one := range f.copies {
		if one.at == id {
			one.at = ""
		}
	}
}

// rebalance gives every booking to the router that decides for its pool now, and returns the waiting requests that must ask another
// router than they did; mu is held.
func (f *Frontend) rebalance() []*Waiting {
	clear(f.placed)
	given := map[ID][]*booking{}
	for _, b := range f.live {
		to := f.decider(b.pool)
		if to == f.params.Self {
			to = ""
		}
		if b.at == to {
			continue
		}
		if b.at != "" {
			f.sendDrop(b.at, b.number)
		}
		b.assign(to)
		if to != "" {
			given[to] = append(given[to], b)
		}
	}
	for to, list := range given {
		f.sendBookings(to, false, list)
	}
	for _, one := range f.copies {
		one.assign(f.decider(one.pool))
	}
	var moved []*Waiting
	for _, w := range f.asks {
		if w.at != f.decider(w.pool) {
			moved = append(moved, w)
		}
	}
	for w := range f.here {
		if w.shared && f.decider(w.pool) != f.params.Self {
			moved = append(moved, w)
		}
	}
	return moved
}

// move makes waiting requests ask again.
func (f *Frontend) move(list []*Waiting) {
	for _, w := range list {
		w.again("")
	}
}

// again asks again, or decides alone.
func (w *Waiting) again(alone string) {
	f := w.frontend
	f.mu.Lock()
	if w.done {
		f.mu.Unlock()
		return
	}
	if w.moves++; w.moves > maxMoves && alone == "" {
		alone = aloneMoved
	}
	local := w.withdraw()
	turn := w.turn
	f.mu.Unlock()
	if local != nil && !local.Leave() {
		// The own chooser has decided at this moment; that outcome is void, because the turn has passed.
		f.metrics.voided()
	}
	w.route(turn, alone)
}

// Reply handles a reply of a peer's Decider.
func (f *Frontend) Reply(from ID, reply *peerv1.DeciderReply) {
	f.heard(from)
	switch r := reply.GetReply().(type) {
	case *peerv1.DeciderReply_Held:
		f.mu.Lock()
		if w := f.asks[r.Held]; w != nil && w.at == from {
			w.held = true
		}
		f.mu.Unlock()
	case *peerv1.DeciderReply_Chosen:
		f.chosen(from, r.Chosen)
	case *peerv1.DeciderReply_Refused:
		f.refused(from, r.Refused)
	case *peerv1.DeciderReply_Pong:
		f.pong(from, r.Pong)
	case *peerv1.DeciderReply_Resync:
		f.resync(from)
	case *peerv1.DeciderReply_Copy:
		f.ordered(from, r.Copy)
	}
}

// heard notes that the peer lives.
func (f *Frontend) heard(from ID) {
	f.mu.Lock()
	p := f.peers[from]
	if p == nil {
		f.mu.Unlock()
		return
	}
	p.heard = f.params.Clock.Now()
	var moved []*Waiting
	if p.silent {
		p.silent = false
		f.params.Scope.Log().Info("a silent router answers again", "router", from)
		moved = f.rebalance()
	}
	f.mu.Unlock()
	f.move(moved)
}

// chosen takes a peer's choice.
func (f *Frontend) chosen(from ID, in *peerv1.Chosen) {
	f.mu.Lock()
	w := f.asks[in.GetNumber()]
	if w == nil || w.at != from {
		f.sendDrop(from, in.GetNumber())
		f.mu.Unlock()
		return
	}
	asked := w.asked
	f.mu.Unlock()
	slot, ok := slotOf(w.req.Replicas, replica.ID(in.GetReplicaId()), int(in.GetRank()))
	if !ok {
		w.again(aloneUnknown) // which drops it at the peer
		return
	}
	now := f.params.Clock.Now()
	b := newBooking(f, w, in.GetNumber())
	lead := b.lead(w)
	req := *w.req
	req.Observer, req.PrefillObserver, req.Again = b, lead, true
	d := decisionOf(in, &req, from, slot, now, now.Sub(w.began))
	d.Took = max(0, now.Sub(asked)-d.Held)
	if !readWays(d, in, req.Replicas) || d.Split() != nil && !req.Splittable {
		w.again(aloneUnknown)
		return
	}
	by := chooser.Decided{Decision: d, Rank: int(in.GetRank()), Replica: ownerOf(&req, d.Candidates[0].Replica)}
	if split := d.Split(); split != nil {
		by.Prefiller, by.Move = ownerOf(&req, split.Prefill.Replica), b
	}
	if req.Hashes != nil {
		by.Hashes = req.Hashes(int(in.GetBlockSize()))
	}
	c, err := f.params.Chooser.Adopt(&req, by)
	if err != nil {
		f.params.Scope.Log().Debug("a choice of a peer cannot be used", "router", from, "replica", in.GetReplicaId(), "error", err)
		w.again(aloneUnknown)
		return
	}
	w.take(b, lead, c, from)
}

// take hands a peer's choice to the caller, unless the request has left or asked another router in the time between.
func (w *Waiting) take(b, lead *booking, c *chooser.Choice, from ID) {
	f := w.frontend
	f.mu.Lock()
	if w.done || w.number != b.number {
		f.mu.Unlock()
		c.Release(void())
		return
	}
	w.done = true
	delete(f.asks, b.number)
	if c.Booked() {
		if b.begin(c, w.req.Hashes, from); w.req.Copier != nil {
			b.origin = w
		}
		if p := c.Prefill(); p != nil {
			lead.begin(p, w.req.Hashes, from)
		}
	}
	f.mu.Unlock()
	f.metrics.answered(outcomeChosen, c.Decision.Took)
	w.deliver(c, nil)
}

// refused takes a peer's refusal. This router may be able to serve a request that a peer cannot: it looks itself.
func (f *Frontend) refused(from ID, in *peerv1.Refused) {
	f.mu.Lock()
	w := f.asks[in.GetNumber()]
	if w == nil || w.at != from {
		f.mu.Unlock()
		return
	}
	err := errorOf(in)
	if err == nil {
		f.mu.Unlock()
		w.again(aloneNoReplica)
		return
	}
	w.done = true
	delete(f.asks, w.number)
	asked := f.params.Clock.Now().Sub(w.asked)
	f.mu.Unlock()
	f.metrics.answered(outcomeRefused, asked)
	w.deliver(nil, err)
}

// pong takes a sign of a peer, and its ability.
func (f *Frontend) pong(from ID, in *peerv1.Pong) {
	f.mu.Lock()
	p := f.peers[from]
	if p == nil {
		f.mu.Unlock()
		return
	}
	if now := f.params.Clock.Now(); in.GetNumber() == p.pings && p.pings == p.pongs+1 {
		p.roundTrip = now.Sub(p.pinged)
	}
	p.pongs = max(p.pongs, in.GetNumber())
	var moved []*Waiting
	if p.ability != in.GetAbility() {
		p.ability = in.GetAbility()
		moved = f.rebalance()
	}
	f.mu.Unlock()
	f.move(moved)
}

// resync sends all bookings that the peer should know.
func (f *Frontend) resync(from ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*booking
	for _, b := range f.live {
		if b.at == from {
			list = append(list, b)
		}
	}
	f.metrics.resynced()
	f.sendBookings(from, true, list)
}
