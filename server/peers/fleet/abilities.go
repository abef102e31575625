package fleet

import (
	"sync"
	"sync/atomic"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/warm"
)

// abilities are how fit this router and its peers are to decide.
type abilities struct {
	index   *warm.Warm
	leaving atomic.Bool
	peers   sync.Map // by id: of the peers with a link, as they announced them last
}

// Leave announces that this router is about to stop, so that others decide for its pools from now on.
func (a *abilities) Leave() { a.leaving.Store(true) }

// Ability is how fit this router is to decide: a new one leaves that to routers with an index, until it has pulled theirs.
func (a *abilities) Ability() pb.Ability {
	switch {
	case a.leaving.Load():
		return pb.Ability_ABILITY_LEAVING
	case !a.index.Settled():
		return pb.Ability_ABILITY_UNABLE
	}
	return pb.Ability_ABILITY_ABLE
}

// Able reports whether this router is fit to decide for others.
func (a *abilities) Able() bool { return a.Ability() == pb.Ability_ABILITY_ABLE }

// announced notes a peer's ability, forget its end.
func (a *abilities) announced(id string, ability pb.Ability) { a.peers.Store(id, ability) }

func (a *abilities) forget(id string) { a.peers.Delete(id) }

// of is a peer's ability; unspecified for one without a link.
func (a *abilities) of(id string) pb.Ability {
	known, _ := a.peers.Load(id)
	ability, _ := known.(pb.Ability)
	return ability
}
