package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// AddRank notes that rank index of r exists at slot. A slot that is known keeps its learned state.
func (c *Chooser) AddRank(slot replica.Slot, r *replica.Replica, index int) {
	c.ranks.AddRank(slot, r, index)
}

// Heard notes that a rank made progress, for example by its event feed.
func (c *Chooser) Heard(slot replica.Slot) { c.ranks.Heard(slot) }

// Rates lists the learned speeds of all ranks.
func (c *Chooser) Rates() []rank.Rate { return c.ranks.Rates() }

// Learned is where the knowledge of ranks is kept that routers of a fleet exchange.
func (c *Chooser) Learned() *rank.Table { return c.ranks }

// Waiting is the number of requests that wait.
func (c *Chooser) Waiting() int { return c.room.Waiting() }

// WaitingFor is the number of requests for a model that wait.
func (c *Chooser) WaitingFor(model string) int { return c.room.WaitingFor(model) }

// Tick visits the lines that are due and returns when to call it next; false when no request waits. Run calls it; a player of traces
// calls it in virtual time.
func (c *Chooser) Tick() (next time.Time, ok bool) { return c.room.Tick() }

// NextWake returns when Tick should be called next; false when no request waits.
func (c *Chooser) NextWake() (next time.Time, ok bool) { return c.room.NextWake() }
