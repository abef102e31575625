package load

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// call is a lifecycle call.
type call uint8

const (
	callPrefill call = iota
	callProgress
	callRenew
	callRelease
	calls = 4
)

func (c call) String() string {
	return [calls]string{"prefill_done", "progress", "renew", "release"}[c]
}

// counts are the book's counters. They are plain atomics, read when metrics are collected,
// because every chunk of every stream passes here.
type counts struct {
	calls                                                    [calls][Outcomes]atomic.Int64
	released, expired, lost, moved, conflicts, full, doubted atomic.Int64
}

// newMetrics registers the book's metrics; a nil provider registers none.
func newMetrics(params Params, b *Book) error {
	provider := params.Meter
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/choose/load")
	live, err1 := meter.Int64ObservableGauge("kvpilot.load.reservations",
		metric.WithUnit("{reservation}"), metric.WithDescription("Reservations that have not ended."))
	ends, err2 := meter.Int64ObservableCounter("kvpilot.load.ended",
		metric.WithUnit("{reservation}"), metric.WithDescription("Bookings that ended, by reason: released, expired (lease), lost (rank gone), moved."))
	refused, err3 := meter.Int64ObservableCounter("kvpilot.load.refused",
		metric.WithUnit("{reservation}"), metric.WithDescription("Failed bookings, by reason: conflict (the rank was booked after it was read), full."))
	reports, err4 := meter.Int64ObservableCounter("kvpilot.load.reports",
		metric.WithUnit("{report}"), metric.WithDescription("Lifecycle reports, by call and outcome."))
	doubted, err5 := meter.Int64ObservableCounter("kvpilot.load.doubted",
		metric.WithUnit("{reservation}"), metric.WithDescription("Bookings of external callers whose load was removed because the engine reported no such request."))
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			return fmt.Errorf("register load metrics: %w", err)
		}
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		c := &b.counts
		o.ObserveInt64(live, b.live.Load())
		o.ObserveInt64(doubted, c.doubted.Load())
		for reason, n := range map[string]int64{
			"released": c.released.Load(), "expired": c.expired.Load(), "lost": c.lost.Load(), "moved": c.moved.Load(),
		} {
			o.ObserveInt64(ends, n, metric.WithAttributes(attribute.String("reason", reason)))
		}
		o.ObserveInt64(refused, c.conflicts.Load(), metric.WithAttributes(attribute.String("reason", "conflict")))
		o.ObserveInt64(refused, c.full.Load(), metric.WithAttributes(attribute.String("reason", "full")))
		for name := range calls {
			for out := range Outcomes {
				o.ObserveInt64(reports, c.calls[name][out].Load(), metric.WithAttributes(
					attribute.String("call", call(name).String()), attribute.String("outcome", Outcome(out).String())))
			}
		}
		return nil
	}, live, ends, refused, reports, doubted)
	if err == nil {
		err = newRankMetrics(meter, params.Rank, b)
	}
	if err != nil {
		return fmt.Errorf("register load metrics: %w", err)
	}
	return nil
}

// newRankMetrics registers what is booked on each rank.
func newRankMetrics(meter metric.Meter, name func(replica.Slot) (replica.Rank, bool), b *Book) error {
	requests, err1 := meter.Int64ObservableGauge("kvpilot.load.requests",
		metric.WithUnit("{request}"), metric.WithDescription("Requests in flight on a rank."))
	tokens, err2 := meter.Float64ObservableGauge("kvpilot.load.prefill_tokens",
		metric.WithUnit("{token}"), metric.WithDescription("Uncached prompt tokens that a rank has yet to compute."))
	wait, err3 := meter.Float64ObservableGauge("kvpilot.load.prefill_time",
		metric.WithUnit("s"), metric.WithDescription("Predicted time that a rank needs for the prompt tokens it has yet to compute."))
	blocks, err4 := meter.Float64ObservableGauge("kvpilot.load.blocks",
		metric.WithUnit("{block}"), metric.WithDescription("KV blocks that the requests in flight on a rank use; shared blocks count once."))
	age, err5 := meter.Float64ObservableGauge("kvpilot.load.reservation.age",
		metric.WithUnit("s"), metric.WithDescription("Age of a rank's oldest reservation; 0 when it has none."))
	_, err6 := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if name == nil {
			return nil
		}
		now := b.clock()
		for slot, rk := range *b.ranks.Load() {
			rank, known := name(replica.Slot(slot))
			if rk == nil || !known {
				continue
			}
			v := rk.view(b.since(now))
			labels := metric.WithAttributes(attribute.String("replica", string(rank.Replica)), attribute.Int("rank", rank.Index))
			o.ObserveInt64(requests, int64(v.InFlight), labels)
			o.ObserveFloat64(tokens, v.PrefillTokens, labels)
			o.ObserveFloat64(wait, v.PrefillTime.Seconds(), labels)
			o.ObserveFloat64(blocks, v.DecodeBlocks, labels)
			o.ObserveFloat64(age, rk.oldest(b.since(now)).Seconds(), labels)
		}
		return nil
	}, requests, tokens, wait, blocks, age)
	return errors.Join(err1, err2, err3, err4, err5, err6)
}

// oldest is how long ago the first of the reservations was booked that are there now.
func (rk *rank) oldest(now int64) time.Duration {
	rk.mu.Lock()
	defer rk.mu.Unlock()
	if rk.stays.first == nil {
		return 0
	}
	return time.Duration(max(0, now-rk.stays.first.bookedAt))
}
