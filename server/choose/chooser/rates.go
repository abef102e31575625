package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// ExportModels returns the speed of the ranks that this router has learned about by its own requests.
func (c *Chooser) ExportModels() map[replica.Rank]speed.Model {
	models := map[replica.Rank]speed.Model{}
	for _, r := range *c.ranks.Load() {
		if r == nil {
			continue
		}
		if m, own := r.speed.Learned(); own {
			models[replica.Rank{Replica: r.replica, Index: r.index}] = m
		}
	}
	return models
}

// ImportModels takes the speed of ranks as other routers have learned it. Ranks that this router learns about itself keep
// their own; unknown ranks are ignored.
func (c *Chooser) ImportModels(models map[replica.Rank]speed.Model) {
	if len(models) == 0 {
		return
	}
	now := c.clock()
	for _, r := range *c.ranks.Load() {
		if r == nil {
			continue
		}
		if m, ok := models[replica.Rank{Replica: r.replica, Index: r.index}]; ok {
			r.speed.Import(m, now)
		}
	}
}
