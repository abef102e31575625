package intake

import (
	"cmp"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/splits"
)

// sides puts requests on the sides of the splits of their models.
type sides struct {
	registry *registry.Registry
	splits   *splits.Splits
	standby  Standbys
}

// impose applies the gateway's priority, and the model of the gateway, of a rewrite or of a split, to what was read of the body.
func (sd *sides) impose(rq *Request) {
	c, parsed := rq.Call, rq.Parsed
	if c.Priority != 0 && !parsed.Present("priority") {
		parsed.Priority = -c.Priority
	}
	if c.Model == "" {
		sd.split(rq)
	}
	if c.Model != "" {
		parsed.Model = c.Model
	}
}

// split puts a request on its side, where its model is split. A request that one replica alone can serve is on none.
func (sd *sides) split(rq *Request) {
	c, asked := rq.Call, rq.Parsed.Model
	var sides []splits.Side
	if c.Rewrites != nil {
		to := c.Rewrites.Targets(asked)
		if len(to) == 1 {
			c.Model = to[0].Model
			return
		}
		for _, t := range to {
			sides = append(sides, splits.Side{Name: t.Model, Model: t.Model, Weight: t.Weight})
		}
	}
	if len(sides) == 0 {
		sides = sd.splits.Of(asked)
	}
	if len(sides) == 0 || c.Options.Pinned != "" || rq.Parsed.PreviousResponse != "" {
		return
	}
	view := sd.registry.Snapshot()
	key := cmp.Or(rq.Parsed.Session, rq.Parsed.Opening(), c.RequestID)
	rq.Side = sd.splits.Assign(asked, sides, rq.Call.Tenant+"\x00"+key, func(s splits.Side) bool {
		return hasReady(view, cmp.Or(s.Model, asked), s.Labels) || len(s.Labels) == 0 && sd.standby.room.Scales(cmp.Or(s.Model, asked))
	})
	if rq.Side == nil {
		return
	}
	if rq.Side.Model != asked {
		c.Model = rq.Side.Model
	}
	sd.limitTo(rq, view)
}

// limitTo limits the choice to the replicas of the request's side. Where the caller's own limits leave none of these, they count alone.
func (sd *sides) limitTo(rq *Request, view *registry.Snapshot) {
	if len(rq.Side.Labels) == 0 {
		return
	}
	pool, ok := view.Pool(rq.Side.Model)
	if !ok {
		return
	}
	own := rq.Call.Options.Allowed
	var allowed []replica.ID
	for _, r := range pool.Replicas {
		if hasLabels(r, rq.Side.Labels) && (len(own) == 0 || slices.Contains(own, r.ID)) {
			allowed = append(allowed, r.ID)
		}
	}
	if len(allowed) > 0 {
		rq.Call.Options.Allowed = allowed
	}
}

// hasReady reports whether a ready replica with the labels serves the model.
func hasReady(view *registry.Snapshot, model string, labels map[string]string) bool {
	pool, ok := view.Pool(model)
	return ok && slices.ContainsFunc(pool.Replicas, func(r *replica.Replica) bool {
		return r.State == replica.StateReady && hasLabels(r, labels)
	})
}

func hasLabels(r *replica.Replica, labels map[string]string) bool {
	for name, value := range labels {
		if r.Labels[name] != value {
			return false
		}
	}
	return true
}
