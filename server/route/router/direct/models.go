package direct

import (
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
)

// Catalog answers calls about the models.
type Catalog struct{ registry *registry.Registry }

// NewCatalog makes a catalog of the replicas of a registry.
func NewCatalog(r *registry.Registry) Catalog { return Catalog{r} }

// Models answers GET /v1/models: every name that a replica serves or an alias defines.
func (c Catalog) Models() ([]byte, error) { return pools.Cards(c.registry.Snapshot()) }

// Model answers GET /v1/models/{id}.
func (c Catalog) Model(id string) ([]byte, error) {
	s := c.registry.Snapshot()
	pool, ok := s.Pool(id)
	if !ok {
		return nil, pools.Unknown(id, s)
	}
	return pools.Card(pool)
}
