package chooser

import (
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// ModelPrograms are the programs of the requests that name one model.
type ModelPrograms struct {
	// Model is the model as requests name it.
	Model string
	// Programs are the first ones in the order of names that the filter selects.
	Programs []programs.Program
	// Stats counts all of the model, whatever the filter.
	Stats programs.Stats
	// Replicas is the number of the pool's replicas, Needed the number that would have memory for all programs.
	Replicas, Needed int
}

// Programs returns the programs of each model for which filter returns true, at most so many of each, in no order. It is safe for
// concurrent use.
func (c *Chooser) Programs(filter func(model string) (programs.Filter, bool), most int) []ModelPrograms {
	var list []ModelPrograms
	now := c.clock.passed()
	for _, ln := range c.lines.all() {
		f, ok := filter(ln.model)
		if !ok {
			continue
		}
		m := ModelPrograms{Model: ln.model, Programs: ln.claims.ledger.List(&f, most, now)}
		m.Stats, m.Replicas, m.Needed = ln.pressure(false, now)
		list = append(list, m)
	}
	return list
}

// pressure counts the programs of a line. own leaves out programs that another router counts.
func (ln *line) pressure(own bool, now time.Duration) (stats programs.Stats, replicas, needed int) {
	stats = ln.claims.ledger.Stats(own, now)
	replicas = ln.pools.size()
	return stats, replicas, stats.Needed(replicas)
}

// newProgramMetrics makes the metrics of the ledgers and returns the function that observes them.
func newProgramMetrics(s *instruments.Set, lines *lines, clock *clock) func(metric.Observer) {
	sessions := s.ObservedGauge("kvpilot.chooser.programs", "{session}",
		"Programs by state: placed (its context has a claim on a rank's memory), paused (it lost its place between two calls) or waiting (for a rank with memory for it). Of a fleet each is counted by the router that decides.")
	needed := s.ObservedGauge("kvpilot.chooser.program_replicas_needed", "{replica}",
		"Replicas that would have memory for all programs of the pools in which some are paused or wait; 0 without such a pool.")
	pauses := s.ObservedCounter("kvpilot.chooser.program_pauses", "{session}", "Programs that lost their place between two calls because those of their rank had outgrown its memory.")
	placed, paused, waiting := instruments.Label("state", "placed"), instruments.Label("state", "paused"), instruments.Label("state", "waiting")
	return func(o metric.Observer) {
		var all programs.Stats
		sum := 0
		for _, ln := range lines.all() {
			one, _, replicas := ln.pressure(true, clock.passed())
			all.Add(one)
			if one.Want() > one.Placed {
				sum += replicas
			}
		}
		o.ObserveInt64(sessions, int64(all.Placed), placed)
		o.ObserveInt64(sessions, int64(all.Paused), paused)
		o.ObserveInt64(sessions, int64(all.Waiting), waiting)
		o.ObserveInt64(needed, int64(sum))
		o.ObserveInt64(pauses, all.Taken)
	}
}
