package decide

import (
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
)

// routers are this router and the peers that it knows, by which one of them decides for each pool. The frontend's mu guards them.
type routers struct {
	self    ID
	ability peerv1.Ability // this router's own, as Tick found it last
	peers   map[ID]*peer   // peers that were up once and did not leave
	placed  map[string]ID  // the decider of each pool, as long as nothing changes
}

// decider is the router that decides for a pool.
func (r *routers) decider(pool string) ID {
	if id, ok := r.placed[pool]; ok {
		return id
	}
	members := []member{{r.self, r.ability}}
	for _, p := range r.peers {
		if p.answers() {
			members = append(members, member{p.id, p.ability})
		}
	}
	id := place(pool, members)
	r.placed[pool] = id
	return id
}

// maxLag bounds how long a choice of this router for its own held request is kept back.
const maxLag = 5 * time.Millisecond

// lag is how long to keep back a choice of the own chooser for a request that was held. The hold queue releases requests of
// several routers in one visit, in an order in which one counts on the blocks of another. Peers' requests learn of it half a round trip
// later; if this router's own left at once, they would reach the engine first.
func (r *routers) lag(c *chooser.Choice) (late time.Duration) {
	if c == nil || c.Decision.Held <= 0 || c.Decision.Alone != "" {
		return 0
	}
	for _, p := range r.peers {
		if p.answers() {
			late = max(late, p.roundTrip/2)
		}
	}
	return min(late, maxLag)
}
