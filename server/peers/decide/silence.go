package decide

import (
	"context"
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

// tickEvery is how often Tick is to be called.
func (f *Frontend) tickEvery() time.Duration { return f.cfg.Patience / 2 }

// Tick finds deciders that do not answer.
func (f *Frontend) Tick() {
	now := f.params.Clock.Now()
	f.mu.Lock()
	late := append(f.late(now, f.cfg.Patience), f.heldTooLong(now, f.heldFor())...)
	changed := false
	if a := f.params.Fleet.Ability(); a != f.ability {
		f.ability, changed = a, true
	}
	busy := map[ID]bool{}
	for _, w := range f.asks {
		busy[w.at] = true
	}
	for _, p := range f.peers {
		if f.ping(p, now, busy[p.id] || p.bookings > 0) {
			changed = true
		}
	}
	var moved []*Waiting
	if changed {
		moved = f.rebalance()
	}
	f.mu.Unlock()
	for _, w := range late {
		f.metrics.answered(outcomeSilent, f.cfg.Patience)
		w.again(aloneSilent)
	}
	f.move(moved)
}

// ping asks the peer for an answer when it is time, and returns true when the peer has become silent; mu is held.
func (f *Frontend) ping(p *peer, now time.Time, busy bool) (fell bool) {
	allowed := quietFactor * f.cfg.Patience
	if p.pings != p.pongs && !p.silent && now.Sub(p.pinged) > allowed && now.Sub(p.heard) > allowed {
		p.silent, fell = true, true
		f.params.Scope.Log().Warn("a router is silent: its pools are decided by another one until it answers", "router", p.id, "silent", now.Sub(p.heard))
	}
	if every := 2 * f.cfg.Patience; busy && p.nextPing.Sub(now) > every {
		p.nextPing = now.Add(every)
	}
	if now.Before(p.nextPing) {
		return fell
	}
	p.nextPing = now.Add(idlePing)
	if busy {
		p.nextPing = now.Add(2 * f.cfg.Patience)
	}
	if p.pings == p.pongs {
		p.pinged = now
	}
	p.pings++
	f.params.Fleet.SendEvent(p.id, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Ping{
		Ping: &peerv1.Ping{Number: p.pings, Bookings: p.bookings, Sum: p.sum, Ability: f.ability},
	}})
	return fell
}

// Run calls Tick until ctx ends.
func (f *Frontend) Run(ctx context.Context) error { return runTicks(ctx, f.tickEvery(), f.Tick) }
