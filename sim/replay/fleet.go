package replay

import (
	"fmt"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
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
		r.member = &member{id: decide.ID(fmt.Sprintf("%08x", r.number+1))}
		byID[r.member.id] = r
	}
	late := v.routers[0].job.options.RTT / 2
	for _, r := range v.routers {
		m := r.member
		p := decide.Params{
			Self: m.id, Chooser: r.chooser, Now: r.now,
			After:    func(d time.Duration, f func()) { v.sim.after(d.Seconds(), f) },
			Pool:     func(model string) string { return model },
			Replicas: func(string, string) []*replica.Replica { return r.replicas },
			RankOf: func(slot replica.Slot) (replica.Rank, bool) {
				return replica.Rank{Replica: r.replicas[slot].ID}, true
			},
			SendEvent: func(to decide.ID, ev *kvpilotv1.FrontendEvent) {
				v.sim.after(late, func() {
					byID[to].member.decider.Event(m.id, ev)
					byID[to].plan()
				})
			},
			SendReply: func(to decide.ID, reply *kvpilotv1.DeciderReply) {
				v.sim.after(late, func() { byID[to].member.frontend.Reply(m.id, reply) })
			},
		}
		m.frontend = decide.NewFrontend(decide.DefaultConfig(), p)
		m.decider = decide.NewDecider(decide.DefaultConfig(), p)
	}
	for _, r := range v.routers {
		for _, other := range v.routers {
			if other != r {
				r.member.decider.Up(other.member.id)
				r.member.frontend.Up(other.member.id, kvpilotv1.Ability_ABILITY_ABLE)
			}
		}
		v.sim.after(lookEach, func() { v.look(r) })
	}
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
