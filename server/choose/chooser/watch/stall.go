package watch

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// longestRound bounds the time that one round counts as silence: when this process was suspended, it missed progress too. On a machine
// that is short of processor time most rounds are late, and MUST count in full, or no silence would ever be long enough.
const longestRound = time.Second

// Engines has other packages' knowledge of the ranks' engines.
type Engines interface {
	// Vitals returns the progress of a rank's engine.
	Vitals(slot replica.Slot, now time.Time) liveness.Vitals
	// Ask requests fresh Vitals of a rank's engine.
	Ask(slot replica.Slot)
}

// Waiting are the requests that wait in the router.
type Waiting interface {
	// Changed has them looked at again, Freed the requests for the rank at slot.
	Changed()
	Freed(slot replica.Slot)
}

// Watch finds the ranks that make no progress, and withdraws their requests. Its state is each rank's liveness.
type Watch struct {
	Engines  Engines // nil: no rank counts as stalled
	Ranks    *rank.Table
	Settings *settings.Current
	Clock    *clock.Clock
	Waiting  Waiting
	Log      *slog.Logger
	Stalls   metric.Int64Counter
}

// Run judges the ranks until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	if w.Engines == nil {
		return
	}
	tick := time.NewTicker(liveness.Period)
	defer tick.Stop()
	last := w.Clock.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stall := w.Settings.Load().Config.Stall
		now := w.Clock.Now()
		passed := min(now.Sub(last), longestRound)
		last = now
		vitals := w.vitals(now)
		w.moveLeaving(vitals, now)
		if stall.After == 0 {
			continue
		}
		w.judgeRanks(vitals, liveness.Round{Now: now, Passed: passed, After: stall.After}, stall)
	}
}

// vitals reads the state of each rank's engine, by slot.
func (w *Watch) vitals(now time.Time) []liveness.Vitals {
	ranks := w.Ranks.BySlot()
	list := make([]liveness.Vitals, len(ranks))
	for slot, r := range ranks {
		if r != nil {
			list[slot] = w.Engines.Vitals(replica.Slot(slot), now)
		}
	}
	return list
}

// moveLeaving withdraws the requests whose answers have not begun from ranks of replicas that are left. Streams that have begun move by
// themselves: see Choice.ShouldMove.
func (w *Watch) moveLeaving(vitals []liveness.Vitals, now time.Time) {
	for slot, r := range w.Ranks.BySlot()[:len(vitals)] {
		if r == nil {
			continue
		}
		leaving := vitals[slot].Leaving
		if view := vitals[slot].View; view != nil && r.Known.Load() != view {
			w.Ranks.Update(r, view)
		}
		if r.Leaving.Load() != leaving {
			r.Leaving.Store(leaving)
		}
		if !leaving {
			continue
		}
		for _, request := range r.Liveness.Unbegun() {
			if f := request.Owner.(*follow.Flight); f.CanMove(now) {
				f.Withdraw(false, ask.Leaving)
			}
		}
	}
}

// judgeRanks judges every rank once.
func (w *Watch) judgeRanks(vitals []liveness.Vitals, round liveness.Round, stall settings.StallConfig) {
	ranks := w.Ranks.BySlot()[:len(vitals)] // those added since then are judged the next time
	var best, second time.Time              // the last answers to health probes, of two replicas that are not late
	var answered replica.ID
	for slot, r := range ranks {
		if r == nil {
			continue
		}
		v := &vitals[slot]
		switch {
		case v.Late >= liveness.LateAfter, r.Replica == answered:
		case v.Answered.After(best):
			best, second, answered = v.Answered, best, r.Replica
		case v.Answered.After(second):
			second = v.Answered
		}
	}
	for slot, r := range ranks {
		if r == nil {
			continue
		}
		round.Elsewhere = best
		if r.Replica == answered {
			round.Elsewhere = second
		}
		round.SpeedKnown = r.Speed.Model().Samples > 0
		w.judgeRank(r, &vitals[slot], round, stall)
		w.suspendMissing(r, &vitals[slot], round.Now)
	}
}

// judgeRank judges a rank and withdraws the requests that must not wait there.
func (w *Watch) judgeRank(r *rank.Rank, v *liveness.Vitals, round liveness.Round, stall settings.StallConfig) {
	m := &r.Liveness
	if before, now := m.Look(v, round); now != before {
		w.verdictChanged(r, before, now)
	}
	if stall.Stream > 0 {
		for _, request := range m.Quiet(round.Passed, stall.Stream) {
			request.Owner.(*follow.Flight).WithdrawFromStalled(false, round.Now)
		}
	}
	sick := v.Unhealthy && stall.Unhealthy > 0 && m.Sick() >= stall.Unhealthy
	if !m.Stalled() && !sick {
		return
	}
	for _, request := range m.Movable(sick) {
		request.Owner.(*follow.Flight).WithdrawFromStalled(sick, round.Now)
	}
}

// verdictChanged logs and counts a verdict.
func (w *Watch) verdictChanged(r *rank.Rank, before, now liveness.Evidence) {
	defer w.Waiting.Changed()
	if now == liveness.None {
		w.Log.Info("a stalled rank works again", "replica", string(r.Replica), "rank", r.Index)
		return
	}
	w.Stalls.Add(context.Background(), 1, instruments.Label("evidence", now.String()))
	if before == liveness.None {
		w.Log.Warn("a rank stalled and is avoided", "replica", string(r.Replica), "rank", r.Index,
			"evidence", now.String(), "silent", r.Liveness.Silent(), "requests", r.Liveness.InFlight())
	}
}

// suspendMissing stops counting the bookings of external callers when the engine does not report their requests.
func (w *Watch) suspendMissing(r *rank.Rank, v *liveness.Vitals, now time.Time) {
	list, ask := r.Liveness.Missing(v, now)
	if ask {
		w.Engines.Ask(r.Slot)
	}
	freed := false
	for _, request := range list {
		freed = request.Owner.(*follow.Flight).Suspend(w.Clock.Since(now)) || freed
	}
	if freed {
		w.Waiting.Freed(r.Slot)
	}
}

// NewCounter declares the counter of stalls.
func NewCounter(s *instruments.Set) metric.Int64Counter {
	var evidence []metric.MeasurementOption
	for e := liveness.Probe; e <= liveness.Halted; e++ {
		evidence = append(evidence, instruments.Label("evidence", e.String()))
	}
	return s.CounterBy("kvpilot.chooser.stalls", "{stall}", "Times that a rank was found stalled, by evidence.", evidence...)
}

// NewMetrics declares which ranks stall, and returns the function that reads it.
func NewMetrics(s *instruments.Set, ranks *rank.Table) (observe func(metric.Observer)) {
	stalled := s.ObservedGauge("kvpilot.chooser.stalled", "{rank}", "1 while a rank is avoided as stalled.")
	return func(o metric.Observer) {
		for r := range ranks.All() {
			now := int64(0)
			if r.Liveness.Evidence() != liveness.None {
				now = 1
			}
			o.ObserveInt64(stalled, now, r.Labels)
		}
	}
}
