package forward

import (
	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/peers/members"
)

// Home is the router that answers the questions of one name, so that the same question at two routers books once: the living one with
// the highest hash of the name and its id. Routers that see the same members agree. It is nil when it is this router or
// cannot be asked.
func (f *Fleet) Home(tenant, name string) *Peer {
	if f == nil {
		return nil
	}
	home := f.routers.Self()
	most := weight(tenant, name, home.ID)
	for _, m := range f.routers.Others() {
		if w := weight(tenant, name, m.ID); m.State == members.Alive && (w > most || w == most && m.ID > home.ID) {
			home, most = m, w
		}
	}
	return f.Peer(home.ID)
}

func weight(tenant, name, id string) uint64 {
	return xxh3.HashString(tenant + "\x00" + name + "\x00" + id)
}
