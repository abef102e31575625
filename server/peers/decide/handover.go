package decide

import (
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// bookings takes requests in flight that a frontend reports. After a list of all, all others are released.
func (d *Decider) bookings(c *client, in *peerv1.Bookings) {
	d.mu.Lock()
	if in.GetAll() && c.listed == nil {
		c.listed = map[uint64]bool{}
	}
	var fresh []*peerv1.Booking
	for _, b := range in.GetBookings() {
		if c.listed != nil {
			c.listed[b.GetNumber()] = true
		}
		if known := c.booked[b.GetNumber()]; known != nil {
			c.count(b.GetNumber(), known)
		} else {
			fresh = append(fresh, b)
		}
	}
	var gone []*chooser.Choice
	if in.GetAll() && !in.GetMore() {
		for n, b := range c.booked {
			if !c.listed[n] && b.begun { // a request that has not begun may be on its way to the frontend
				if choice := c.remove(n); choice != nil {
					gone = append(gone, choice)
				}
			}
		}
		c.listed = nil
	}
	d.mu.Unlock()
	for _, choice := range gone {
		choice.Release(void())
	}
	for _, b := range fresh {
		d.adopt(c, b)
	}
}

// adopt books a frontend's request in flight. One that cannot be booked is noted, so that the sums agree.
func (d *Decider) adopt(c *client, in *peerv1.Booking) {
	number := in.GetNumber()
	if !isShort(in.GetId(), in.GetTenant(), in.GetModel(), in.GetSession()) {
		return
	}
	d.mu.Lock()
	older, ok := uint64(0), false
	if len(c.booked) < maxOfPeer {
		older, ok = c.name(in.GetId(), number)
	}
	d.mu.Unlock()
	if !ok {
		return
	}
	d.drop(c, older)
	choice := d.book(c.id, in)
	d.mu.Lock()
	b := &booked{id: in.GetId(), choice: choice, since: d.params.Clock.Now()}
	c.booked[number] = b
	c.count(number, b)
	d.metrics.adopted()
	gone := d.clients[c.id] != c
	d.mu.Unlock()
	if gone { // its frontend stayed away
		d.end(c, number, void())
	}
}

// book books in; nil when it cannot be booked, because its rank is not known here.
func (d *Decider) book(from ID, in *peerv1.Booking) *chooser.Choice {
	replicas := d.params.Replicas.Serving(in.GetModel(), "")
	slot, ok := slotOf(replicas, replica.ID(in.GetReplicaId()), int(in.GetRank()))
	if !ok {
		return nil
	}
	req := &chooser.Request{
		Request: decision.Request{ID: in.GetId(), Attempt: int(in.GetAttempt()), Tenant: in.GetTenant(), Model: in.GetModel()},
		Pool:    chooser.Pool{Replicas: replicas},
		Prompt:  chooser.Prompt{PromptTokens: tokensOf(in.GetPromptTokens())},
		Caller:  chooser.Caller{Session: in.GetSession()},
		Reply:   chooser.Reply{ExpectedOutput: tokensOf(in.GetExpectedOutput()), Unstreamed: in.GetUnstreamed(), Quiet: in.GetQuiet() || in.GetLeased()},
		Terms:   chooser.Terms{Again: true},
		Origin:  chooser.Origin{AskedBy: from},
	}
	var hashed []blockhash.Hash
	if in.GetKeys() != nil {
		hashed = hashes(in.GetKeys())
	}
	at := d.params.Clock.Now().Add(-max(0, min(in.GetAge().AsDuration(), 24*time.Hour)))
	dec := &decision.Decision{
		Request:  req.Request,
		At:       at,
		Prompt:   decision.Prompt{PromptTokens: req.PromptTokens},
		Deciders: decision.Deciders{AskedBy: from},
		Ranks: decision.Ranks{Candidates: []decision.Candidate{{
			RankID:   decision.RankID{Replica: replica.ID(in.GetReplicaId()), Slot: slot, Rank: uint16(in.GetRank())},
			Forecast: decision.Forecast{Uncached: min(in.GetUncachedTokens(), maxTokens), Prefill: amount(in.GetPrefillS())},
			Overlap:  decision.Overlap{BlockSize: in.GetKeys().GetBlockSize()},
			RankLoad: decision.RankLoad{EngineWaiting: -1, KVUsage: -1},
		}}},
	}
	by := chooser.Decided{Decision: dec, Rank: int(in.GetRank()), Hashes: hashed, Recorded: true}
	for _, r := range replicas {
		if r.ID == replica.ID(in.GetReplicaId()) {
			by.Replica = r
		}
	}
	choice, err := d.params.Chooser.Adopt(req, by)
	if err != nil {
		d.params.Scope.Log().Debug("a peer's booking cannot be booked here", "router", from, "reservation", in.GetId(), "error", err)
		return nil
	}
	if in.GetPrefilled() {
		choice.FirstToken()
	}
	if n := tokensOf(in.GetOutputTokens()); n > 0 {
		choice.Progress(n)
	}
	return choice
}
