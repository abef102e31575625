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

// programMetrics show the ledgers of programs.
type programMetrics struct {
	Sessions metric.Int64ObservableGauge   `metric:"kvpilot.chooser.programs" unit:"{session}" by:"state" help:"Programs by state: placed (its context has a claim on a rank's memory), paused (it lost its place between two calls) or waiting (for a rank with memory for it). Of a fleet each is counted by the router that decides."`
	Needed   metric.Int64ObservableGauge   `metric:"kvpilot.chooser.program_replicas_needed" unit:"{replica}" help:"Replicas that would have memory for all programs of the pools in which some are paused or wait."`
	Pauses   metric.Int64ObservableCounter `metric:"kvpilot.chooser.program_pauses" unit:"{session}" help:"Programs that lost their place between two calls for lack of memory."`
}

func (m *programMetrics) observe(o metric.Observer, models iter.Seq[*evaluate.Model], clock *clock.Clock) {
	var all programs.Stats
	pools := map[replica.Slot]*pressure{}
	for model := range models {
		one, replicas, _ := model.Pressure(true, clock.Passed())
		all.Add(one)
		pool := pools[model.Home()]
		if pool == nil {
			pool = &pressure{}
			pools[model.Home()] = pool
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
	o.ObserveInt64(m.Sessions, int64(all.Placed), instruments.Label("state", "placed"))
	o.ObserveInt64(m.Sessions, int64(all.Paused), instruments.Label("state", "paused"))
	o.ObserveInt64(m.Sessions, int64(all.Waiting), instruments.Label("state", "waiting"))
	o.ObserveInt64(m.Needed, int64(sum))
	o.ObserveInt64(m.Pauses, all.Taken)
}

// pressure counts the programs of all models of a pool, which has so many replicas.
type pressure struct {
	stats    programs.Stats
	replicas int
}
