package replay

import (
	"fmt"
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/peers/decide"
)

// member is a router's place in a fleet with one decider: the product's own, whose messages take half of the round
// trip in virtual time. Nothing is encoded.
type member struct {
	id       decide.ID
	frontend *decide.Frontend
	decider  *decide.Decider
}

// lookEach is the time between a member's looks for questions that got no answer.
const lookEach = 0.05

// join makes the routers a fleet whose members reach each other from the start.
func (v *service) join() {
	byID := map[decide.ID]*router{}
	for _, r := range v.routers {
		r.member = &member{id: fmt.Sprintf("%08x", r.number+1)}
		byID[r.member.id] = r
	}
	late := v.routers[0].job.options.RTT / 2
	for _, r := range v.routers {
		m, w := r.member, way{from: r, byID: byID, late: late}
		p := decide.Params{Self: m.id, Chooser: r.chooser, Replicas: w, Fleet: w, Clock: w}
		m.frontend = decide.NewFrontend(decide.DefaultConfig(), p)
		m.decider = decide.NewDecider(decide.DefaultConfig(), p)
	}
	for _, r := range v.routers {
		for _, other := range v.routers {
			if other != r {
				r.member.decider.Up(other.member.id)
				r.member.frontend.Up(other.member.id, peerv1.Ability_ABILITY_ABLE)
			}
		}
		v.sim.after(lookEach, func() { v.look(r) })
	}
}

// way is what a member knows of the replicas and how it reaches the others.
type way struct {
	from *router
	byID map[decide.ID]*router
	late float64 // seconds from one member to another
}

func (w way) Pool(model string) string                  { return model }
func (w way) Serving(string, string) []*replica.Replica { return w.from.replicas }
func (w way) RankOf(slot replica.Slot) (replica.Rank, bool) {
	return replica.Rank{Replica: w.from.replicas[slot].ID}, true
}
func (w way) Broken() []replica.ID             { return nil }
func (w way) Ability() peerv1.Ability          { return peerv1.Ability_ABILITY_ABLE }
func (w way) Now() time.Time                   { return w.from.Now() }
func (w way) After(d time.Duration, do func()) { w.from.sim.after(d.Seconds(), do) }

func (w way) SendEvent(to decide.ID, ev *peerv1.FrontendEvent) {
	w.from.sim.after(w.late, func() {
		w.byID[to].member.decider.Event(w.from.member.id, ev)
		w.byID[to].plan()
	})
}

func (w way) SendReply(to decide.ID, reply *peerv1.DeciderReply) {
	w.from.sim.after(w.late, func() { w.byID[to].member.frontend.Reply(w.from.member.id, reply) })
}

// look ticks a member until all calls have ended.
func (v *service) look(r *router) {
	if v.sim.ended == len(v.sim.trace.Calls) || v.err() != nil {
		return
	}
	r.member.frontend.Tick()
	r.member.decider.Tick()
	r.plan()
	v.sim.after(lookEach, func() { v.look(r) })
}
