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
	calls                                                    [calls][outcomes]atomic.Int64
	released, expired, lost, moved, conflicts, full, doubted atomic.Int64
}

// newMetrics registers the book's metrics.
func newMetrics(params Params, b *Book) {
	s := instruments.New(params.Meter, "server/choose/load")
	live := s.ObservedGauge("kvpilot.load.reservations", "{reservation}", "Reservations that have not ended.")
	ends := s.ObservedCounter("kvpilot.load.ended", "{reservation}", "Bookings that ended, by reason: released, expired (lease), lost (rank gone), moved.")
	rejected := s.ObservedCounter("kvpilot.load.refused", "{reservation}", "Failed bookings, by reason: conflict (the rank was booked after it was read), full.")
	reports := s.ObservedCounter("kvpilot.load.reports", "{report}", "Lifecycle reports, by call and outcome.")
	doubted := s.ObservedCounter("kvpilot.load.doubted", "{reservation}", "Bookings of external callers without load: the engine reported no such request.")
	requests := s.ObservedGauge("kvpilot.load.requests", "{request}", "Requests in flight on a rank.")
	tokens := s.ObservedFloat("kvpilot.load.prefill_tokens", "{token}", "Uncached prompt tokens that a rank has yet to compute.")
	wait := s.ObservedFloat("kvpilot.load.prefill_time", "s", "Predicted time for the prompt tokens that a rank has yet to compute.")
	blocks := s.ObservedFloat("kvpilot.load.blocks", "{block}", "KV blocks that the requests in flight on a rank use; shared blocks count once.")
	age := s.ObservedFloat("kvpilot.load.reservation.age", "s", "Age of a rank's oldest reservation; 0 when it has none.")
	s.Observe(func(o metric.Observer) {
		c := &b.counts
		o.ObserveInt64(live, b.live.Load())
		o.ObserveInt64(doubted, c.doubted.Load())
		o.ObserveInt64(ends, c.released.Load(), instruments.Label("reason", "released"))
		o.ObserveInt64(ends, c.expired.Load(), instruments.Label("reason", "expired"))
		o.ObserveInt64(ends, c.lost.Load(), instruments.Label("reason", "lost"))
		o.ObserveInt64(ends, c.moved.Load(), instruments.Label("reason", "moved"))
		o.ObserveInt64(rejected, c.conflicts.Load(), instruments.Label("reason", "conflict"))
		o.ObserveInt64(rejected, c.full.Load(), instruments.Label("reason", "full"))
		for name := range calls {
			for out := range outcomes {
				o.ObserveInt64(reports, c.calls[name][out].Load(), instruments.Labels(
					attribute.String("call", name.String()), attribute.String("outcome", out.String())))
			}
		}
		if params.Ranks == nil {
			return
		}
		now := b.now()
		for slot, rk := range *b.ranks.Load() {
			rank, known := params.Ranks.RankOf(replica.Slot(slot))
			if rk == nil || !known {
				continue
			}
			var v RankLoad
			rk.view(now, &v)
			labels := instruments.Rank(string(rank.Replica), rank.Index)
			o.ObserveInt64(requests, int64(v.InFlight), labels)
			o.ObserveFloat64(tokens, v.PrefillTokens, labels)
			o.ObserveFloat64(wait, v.PrefillTime.Seconds(), labels)
			o.ObserveFloat64(blocks, v.DecodeBlocks, labels)
			o.ObserveFloat64(age, rk.oldest(now).Seconds(), labels)
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
