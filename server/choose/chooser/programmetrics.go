package chooser

import (
	"iter"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// newProgramMetrics makes the metrics of the ledgers and returns the function that observes them.
func newProgramMetrics(s *instruments.Set, models iter.Seq[*evaluate.Model], clock *clock.Clock) func(metric.Observer) {
	sessions := s.ObservedGauge("kvpilot.chooser.programs", "{session}",
		"Programs by state: placed (its context has a claim on a rank's memory), paused (it lost its place between two calls) or waiting (for a rank with memory for it). Of a fleet each is counted by the router that decides.")
	needed := s.ObservedGauge("kvpilot.chooser.program_replicas_needed", "{replica}",
		"Replicas that would have memory for all programs of the pools in which some are paused or wait; 0 without such a pool.")
	pauses := s.ObservedCounter("kvpilot.chooser.program_pauses", "{session}", "Programs that lost their place between two calls because those of their rank had outgrown its memory.")
	placed, paused, waiting := instruments.Label("state", "placed"), instruments.Label("state", "paused"), instruments.Label("state", "waiting")
	return func(o metric.Observer) {
		var all programs.Stats
		sum := 0
		for m := range models {
			one, _, replicas := m.Pressure(true, clock.Passed())
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
