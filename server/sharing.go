package server

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// The methods below pass what callers change at this router to the other routers of its fleet.

func (p *parts) Drained(id replica.ID, drain *registry.Drain) {
	if p.peers != nil {
		p.peers.Facts().Drained(id, drain)
	}
}

func (p *parts) Registered(spec registry.Spec, left time.Duration) {
	if p.peers != nil {
		p.peers.Facts().Registered(spec, left)
	}
}

func (p *parts) Deregistered(id replica.ID) {
	if p.peers != nil {
		p.peers.Facts().Deregistered(id)
	}
}
