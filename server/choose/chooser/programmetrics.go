package chooser

import (
	"iter"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// newProgramMetrics makes the metrics of the ledgers and returns the function that observes them.
func newProgramMetrics(s *instruments.Set, models iter.Seq[*evaluate.Model], clock *clock.Clock) func(metric.Observer) {
	sessions := s.ObservedGauge("kvpilot.chooser.programs", "{session}",
		"Programs by state: placed (its context has a claim on a rank's memory), paused (it lost its place between two calls) or waiting (for a rank with memory for it). Of a fleet each is counted by the router that decides.")
	needed := s.ObservedGauge("kvpilot.chooser.program_replicas_needed", "{replica}",
		"Replicas that would have memory for all programs of the pools in which some are paused or wait.")
	pauses := s.ObservedCounter("kvpilot.chooser.program_pauses", "{session}", "Programs that lost their place between two calls for lack of memory.")
	placed, paused, waiting := instruments.Label("state", "placed"), instruments.Label("state", "paused"), instruments.Label("state", "waiting")
	return func(o metric.Observer) {
		var all programs.Stats
		pools := map[replica.Slot]*pressure{}
		for m := range models {
			one, replicas, _ := m.Pressure(true, clock.Passed())
			all.Add(one)
			pool := pools[m.Home()]
			if pool == nil {
				pool = &pressure{}
				pools[m.Home()] = pool
			}
			pool.stats.Add(one)
			pool.replicas = max(pool.replicas, replicas)
		}
		sum := 0
		for _, pool := range pools {
			if pool.stats.Want() > pool.stats.Placed {
				sum += pool.stats.Needed(pool.replicas)
			}
		}
		o.ObserveInt64(sessions, int64(all.Placed), placed)
		o.ObserveInt64(sessions, int64(all.Paused), paused)
		o.ObserveInt64(sessions, int64(all.Waiting), waiting)
		o.ObserveInt64(needed, int64(sum))
		o.ObserveInt64(pauses, all.Taken)
	}
}

// pressure counts the programs of all models of a pool, which has so many replicas.
type pressure struct {
	stats    programs.Stats
	replicas int
}
