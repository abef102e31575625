package router

import (
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
)

// catalog answers calls about the models.
type catalog struct{ registry *registry.Registry }

// Models answers GET /v1/models: every name that a replica serves or an alias defines.
func (c catalog) Models() ([]byte, error) { return pools.Cards(c.registry.Snapshot()) }

// Model answers GET /v1/models/{id}.
func (c catalog) Model(id string) ([]byte, error) {
	s := c.registry.Snapshot()
	pool, ok := s.Pool(id)
	if !ok {
		return nil, pools.Unknown(id, s)
	}
	return pools.Card(pool)
}
