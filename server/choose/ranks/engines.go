package ranks

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// engines passes the figures of the engines' metrics to the parts that keep them.
type engines struct{ *Ranks }

func (e engines) EngineAnswered(id replica.ID) { e.Registry.Alive(id) }

func (e engines) EngineLearned(id replica.ID, l enginestats.Learned) {
	e.Registry.Learn(id, registry.Learned{BlockSize: l.BlockSize, Blocks: l.Blocks})
}

func (e engines) EngineBegan(id replica.ID, at time.Time) {
	e.Registry.NoteStart(id, at)
	e.Index.Began(id, at)
}

func (e engines) EngineRestarted(id replica.ID, noticed time.Time) {
	e.Registry.NoteRestart(id, noticed)
}

// Vitals shows whether a rank's engine lives and works.
func (r *Ranks) Vitals(slot replica.Slot, now time.Time) liveness.Vitals {
	fleet := r.Registry.Snapshot()
	of, rank, ok := fleet.BySlot(slot)
	if !ok {
		return liveness.Vitals{}
	}
	pulse := r.Registry.Pulse(of.ID, now)
	v := liveness.Vitals{
		View: of, Asked: pulse.Asked, Late: pulse.Late, Answered: pulse.Answered, Halted: pulse.Paused,
		Unhealthy: of.State == replica.StateUnhealthy,
	}
	if s, ok := r.Stats.Stats(slot); ok {
		v.Halted = v.Halted || s.Sleep != enginestats.Awake && s.Fresh(now)
		v.Counted, v.KVUsage, v.Requests = s.At, s.KVUsage, s.Running+s.Waiting
		v.Count = s.PromptTokens + s.OutputTokens + s.QueryTokens + s.Preemptions
	}
	v.Leaving = v.Halted || r.Registry.IsLeft(of, rank, now)
	return v
}

// Ask requests fresh Vitals.
func (r *Ranks) Ask(slot replica.Slot) { r.Stats.Ask(slot) }

// Report is the report of a rank's engine about itself.
func (r *Ranks) Report(slot replica.Slot, now time.Time, prefilling int, to *chooser.Report) bool {
	s := r.Stats.Last(slot)
	return s != nil && reports.ReportOf(s, prefilling, now, to)
}
