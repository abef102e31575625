package registry

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// DrainConfig configures when requests move from replicas that drain.
type DrainConfig struct {
	// MoveAfter is how long a drain without move lets requests finish before they move. Zero: without limit.
	MoveAfter time.Duration `yaml:"move_after"`
}

func (c DrainConfig) validate() error { return check.AtLeast("move_after", c.MoveAfter, 0) }

// IsLeft reports whether the requests under way on a rank of a replica are to move to others: its source announces its end, or it drains with
// move or for longer than the settings allow.
func (r *Registry) IsLeft(of *replica.Replica, rank int, now time.Time) bool {
	if of.State != replica.StateDraining && !of.IsRankDrained(rank) {
		return false
	}
	at := r.Snapshot().details[of.ID]
	if at.Leaving || at.Drain == nil {
		return at.Leaving
	}
	after := r.settings.now().Drain.MoveAfter
	return at.Drain.Move || after > 0 && now.Sub(at.Drain.Since) >= after
}
