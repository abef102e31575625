package chooser

import (
	"cmp"
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/waiting"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// adoption books the choices and copies of other routers.
type adoption struct {
	booker *booking.Booker
	room   *waiting.Room
}

// Adopt books another router's decision for req and returns the choice, as Choose does. Nothing is asked of the index or the
// queue, and the speed of ranks is not learned from it: the loads that go with it are known to the other router. For a request that
// is not booked (DryRun, Unbooked) the choice has the decision alone. It returns an ErrInvalid, an ErrDuplicate, a *Refused when the
// book is full, or load.ErrNoRank.
func (c *adoption) Adopt(req *ask.Request, by booking.Decided) (*booking.Choice, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	return c.booker.Adopt(req, c.room.ModelOf(req.Model), by)
}

// AdoptCopy notes a copy that another router ordered: requests that wait here may wait for it. The result, nil where the copy is not
// counted, must be ended like the copy. It does not block, and calls nothing back.
func (c *adoption) AdoptCopy(of booking.Copying) ask.CopyReports { return c.booker.AdoptCopy(of) }

// PolicyOf is the policy that decides req.
func (c *Chooser) PolicyOf(req *ask.Request) decision.Policy {
	if p := req.Options.Policy; p != "" {
		return p
	}
	return c.settings.Or(req.Settings).Of(req.Model).Policy
}

// BlockSizes lists the distinct block sizes of the pool's ranks in tokens.
func (c *adoption) BlockSizes(replicas []*replica.Replica) []int {
	var sizes []int
	for _, r := range replicas {
		for _, slot := range r.Slots {
			if size := cmp.Or(c.booker.Index.BlockSize(slot), r.BlockSize, layout.DefaultBlock); !slices.Contains(sizes, size) {
				sizes = append(sizes, size)
			}
		}
	}
	return sizes
}
