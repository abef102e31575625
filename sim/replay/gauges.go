package replay

import (
	"math/rand/v2"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// gauges are what a router reads from the engines' metrics: the only place where the requests of other routers show.
// A router alone that sees streams needs none: every request is its own.
type gauges struct {
	settings enginestats.Config
	dice     *rand.Rand
	ranks    []gauge
}

// gauge is one rank's.
type gauge struct {
	senders enginestats.Senders
	stats   enginestats.Stats
}

// watch starts to read every engine's gauges, as often as enginestats does, until all calls have ended.
func (r *router) watch() {
	r.gauges = &gauges{
		settings: enginestats.DefaultConfig(), dice: rand.New(rand.NewPCG(r.job.seed, 17+uint64(r.number)<<8)),
		ranks: make([]gauge, len(r.sim.engines)),
	}
	for e := range r.sim.engines {
		r.sim.after(0.1*r.gauges.dice.Float64(), func() { r.poll(e) })
	}
}

func (r *router) poll(e int) {
	if r.sim.ended == len(r.sim.trace.Calls) || r.err != nil {
		return
	}
	g := &r.gauges.ranks[e]
	g.senders.Asked(r.inFlight(e))
	r.sim.after(r.sim.delays.Send, func() {
		s := r.sim.engines[e].stats(r.sim)
		r.sim.after(r.sim.delays.Receive, func() {
			s.At = r.Now()
			g.stats = g.senders.See(s, r.inFlight(e), r.gauges.settings.Stale)
			wait := r.gauges.settings.Interval.Seconds()
			r.sim.after(wait*(0.9+0.2*r.gauges.dice.Float64()), func() { r.poll(e) })
		})
	})
}

func (r *router) inFlight(e int) int { return r.book.View(replica.Slot(e), r.Now()).InFlight }

// Report implements reports.Reports.
func (r *router) Report(slot replica.Slot, now time.Time, prefilling int, to *chooser.Report) bool {
	return r.gauges != nil && reports.ReportOf(&r.gauges.ranks[slot].stats, prefilling, now, to)
}

// stats is the engine's metrics page.
func (e *engine) stats(s *sim) enginestats.Stats {
	s.catchUp(e)
	pool, counts := e.machine.Pool(), e.machine.Counts()
	return enginestats.Stats{
		Running: len(e.machine.Running()), Waiting: len(e.machine.Waiting()), KVUsage: 1 - float64(pool.Free())/float64(pool.Size()),
		QueryTokens: counts.Queries, HitTokens: counts.Hits, PromptTokens: counts.PromptTokens, OutputTokens: counts.GenerationTokens,
		Preemptions: counts.Preemptions, PrefillSeconds: e.prefills.seconds, ComputedTokens: e.prefills.computed, Adapters: e.adapters(),
	}
}

// adapters is the part of the metrics page about adapters; nil without slots.
func (e *engine) adapters() *enginestats.Adapters {
	slots := e.machine.Config().Adapters.Slots
	if slots == 0 {
		return nil
	}
	return &enginestats.Adapters{Slots: slots, Running: append([]string{}, enginemodel.AdaptersOf(e.machine.Running())...)}
}

// Now is the moment of virtual time.
func (r *router) Now() time.Time { return r.epoch.Add(time.Duration(r.sim.now * float64(time.Second))) }
