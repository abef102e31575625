package load

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// call is a lifecycle call.
type call uint8

const (
	callPrefill call = iota
	callProgress
	callRenew
	callRelease
	calls
)

func (c call) String() string {
	return [calls]string{"prefill_done", "progress", "renew", "release"}[c]
}

// counts are the book's counters. They are plain atomics, read when metrics are collected,
// because every chunk of every stream passes here.
type counts struct {
	calls                                           [calls][outcomes]atomic.Int64
	released, expired, lost, moved, conflicts, full atomic.Int64
	Doubted                                         instruments.Total `metric:"kvpilot.load.doubted" unit:"{reservation}" help:"Bookings of external callers without load: the engine reported no such request."`
}

// metrics are read at each collection.
type metrics struct {
	Live     metric.Int64ObservableGauge   `metric:"kvpilot.load.reservations" unit:"{reservation}" help:"Reservations that have not ended."`
	Ends     metric.Int64ObservableCounter `metric:"kvpilot.load.ended" unit:"{reservation}" by:"reason" help:"Bookings that ended, by reason: released, expired (lease), lost (rank gone), moved."`
	Rejected metric.Int64ObservableCounter `metric:"kvpilot.load.refused" unit:"{reservation}" by:"reason" help:"Failed bookings, by reason: conflict (the rank was booked after it was read), full."`
	Reports  metric.Int64ObservableCounter `metric:"kvpilot.load.reports" unit:"{report}" by:"call outcome" help:"Lifecycle reports, by call and outcome."`
	Requests metric.Int64ObservableGauge   `metric:"kvpilot.load.requests" unit:"{request}" by:"replica rank" help:"Requests in flight on a rank."`
	Tokens   metric.Float64ObservableGauge `metric:"kvpilot.load.prefill_tokens" unit:"{token}" by:"replica rank" help:"Uncached prompt tokens that a rank has yet to compute."`
	Wait     metric.Float64ObservableGauge `metric:"kvpilot.load.prefill_time" unit:"s" by:"replica rank" help:"Predicted time for the prompt tokens that a rank has yet to compute."`
	Blocks   metric.Float64ObservableGauge `metric:"kvpilot.load.blocks" unit:"{block}" by:"replica rank" help:"KV blocks that the requests in flight on a rank use; shared blocks count once."`
	Age      metric.Float64ObservableGauge `metric:"kvpilot.load.reservation.age" unit:"s" by:"replica rank" help:"Age of a rank's oldest reservation; 0 when it has none."`
}

// observe has the metrics read.
func (b *Book) observe(params Params) {
	var m metrics
	c := &b.counts
	instruments.Declare(params.Scope.Meters(), "server/choose/load", &m, c).Observe(func(o metric.Observer) {
		o.ObserveInt64(m.Live, b.live.Load())
		o.ObserveInt64(m.Ends, c.released.Load(), instruments.Label("reason", "released"))
		o.ObserveInt64(m.Ends, c.expired.Load(), instruments.Label("reason", "expired"))
		o.ObserveInt64(m.Ends, c.lost.Load(), instruments.Label("reason", "lost"))
		o.ObserveInt64(m.Ends, c.moved.Load(), instruments.Label("reason", "moved"))
		o.ObserveInt64(m.Rejected, c.conflicts.Load(), instruments.Label("reason", "conflict"))
		o.ObserveInt64(m.Rejected, c.full.Load(), instruments.Label("reason", "full"))
		for name := range calls {
			for out := range outcomes {
				o.ObserveInt64(m.Reports, c.calls[name][out].Load(), instruments.Labels(
					attribute.String("call", name.String()), attribute.String("outcome", out.String())))
			}
		}
		if params.Ranks == nil {
			return
		}
		now := b.now()
		for slot, p := range *b.ranks.Load() {
			rank, known := params.Ranks.RankOf(replica.Slot(slot))
			if p == nil || !known {
				continue
			}
			var v RankLoad
			p.view(now, &v)
			labels := instruments.Rank(string(rank.Replica), rank.Index)
			o.ObserveInt64(m.Requests, int64(v.InFlight), labels)
			o.ObserveFloat64(m.Tokens, v.PrefillTokens, labels)
			o.ObserveFloat64(m.Wait, v.PrefillTime.Seconds(), labels)
			o.ObserveFloat64(m.Blocks, v.DecodeBlocks, labels)
			o.ObserveFloat64(m.Age, p.rank.oldest(now).Seconds(), labels)
		}
	})
}

// oldest is the age of the rank's first reservation.
func (rk *rank) oldest(now int64) time.Duration {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	if rk.bookings.first == nil {
		return 0
	}
	return time.Duration(max(0, now-rk.bookings.first.bookedAt))
}
