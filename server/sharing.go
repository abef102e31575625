package server

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// The methods below pass what callers change at this router to the other routers of its fleet.

func (p *parts) Drained(id replica.ID, drain *registry.Drain) {
	if p.peers != nil {
		p.peers.facts.Drained(id, drain)
	}
}

func (p *parts) Registered(spec registry.Spec, left time.Duration) {
	if p.peers != nil {
		p.peers.facts.Registered(spec, left)
	}
}

func (p *parts) Deregistered(id replica.ID) {
	if p.peers != nil {
		p.peers.facts.Deregistered(id)
	}
}

// pins are the stored responses' places that the fleet keeps; nil for a router alone.
func (f *peers) pins() router.FleetPins {
	if f == nil {
		return nil
	}
	return f.facts
}
