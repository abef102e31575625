package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
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

// ExportModels returns the speed of the ranks that this router has learned about by its own requests.
func (c *Chooser) ExportModels() map[replica.Rank]speed.Model { return c.ranks.ExportModels() }

// ImportModels takes the speed of ranks as other routers have learned it. Ranks that this router learns about itself keep
// their own; unknown ranks are ignored.
func (c *Chooser) ImportModels(models map[replica.Rank]speed.Model) { c.ranks.ImportModels(models) }

// ExportLoads returns the times of loads from tiers below the GPU, for the ranks that this router has seen any at.
func (c *Chooser) ExportLoads() map[replica.Rank]transfer.Times { return c.ranks.ExportLoads() }

// ImportLoads takes the times of loads as other routers have seen them. Kinds of engines that this router has seen loads of keep their own.
func (c *Chooser) ImportLoads(loads map[replica.Rank]transfer.Times) { c.ranks.ImportLoads(loads) }

// Waiting is the number of requests that wait.
func (c *Chooser) Waiting() int { return c.room.Waiting() }

// WaitingFor is the number of requests for a model that wait.
func (c *Chooser) WaitingFor(model string) int { return c.room.WaitingFor(model) }

// Tick visits the lines that are due and returns when to call it next; false when no request waits. Run calls it; a player of traces
// calls it in virtual time.
func (c *Chooser) Tick() (next time.Time, ok bool) { return c.room.Tick() }

// NextWake returns when Tick should be called next; false when no request waits.
func (c *Chooser) NextWake() (next time.Time, ok bool) { return c.room.NextWake() }
