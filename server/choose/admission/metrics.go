package admission

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the queue's own: depth, bytes, wait, refusals.
type metrics struct {
	wait    metric.Float64Histogram
	refused [causes]atomic.Int64
}

const causes = 6

// cause numbers the refusals; cause names are what metrics and errors use.
func cause(err error) int {
	for i, e := range [causes]error{ErrFull, ErrBytes, ErrDeadline, ErrTimeout, ErrShutdown, ErrShare} {
		if errors.Is(err, e) {
			return i
		}
	}
	return 0
}

// Cause gives a refusal in the form that metrics and public errors use.
func Cause(err error) string {
	return [causes]string{"queue_full", "queue_bytes", "deadline", "timeout", "shutdown", "queue_share"}[cause(err)]
}

func newMetrics(provider metric.MeterProvider, q *Queue) (*metrics, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/kvpilot/kvpilot/server/choose/admission")
	m := &metrics{}
	var err, e error
	m.wait, e = meter.Float64Histogram("kvpilot.admission.wait",
		metric.WithDescription("Time that requests waited in the hold queue before they were sent to a rank."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300))
	err = errors.Join(err, e)
	depth, e := meter.Int64ObservableGauge("kvpilot.admission.requests",
		metric.WithDescription("Requests waiting in the hold queue."), metric.WithUnit("{request}"))
	err = errors.Join(err, e)
	bytes, e := meter.Int64ObservableGauge("kvpilot.admission.bytes",
		metric.WithDescription("Memory held by the requests in the hold queue."), metric.WithUnit("By"))
	err = errors.Join(err, e)
	refused, e := meter.Int64ObservableCounter("kvpilot.admission.refusals",
		metric.WithDescription("Requests that the hold queue rejected, by cause."), metric.WithUnit("{request}"))
	err = errors.Join(err, e)
	_, e = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(depth, q.count.Load())
		o.ObserveInt64(bytes, q.bytes.Load())
		for i, cause := range [causes]error{ErrFull, ErrBytes, ErrDeadline, ErrTimeout, ErrShutdown, ErrShare} {
			o.ObserveInt64(refused, m.refused[i].Load(), metric.WithAttributes(attribute.String("cause", Cause(cause))))
		}
		return nil
	}, depth, bytes, refused)
	return m, errors.Join(err, e)
}

func (m *metrics) refuse(err error) { m.refused[cause(err)].Add(1) }

func (m *metrics) released(waited time.Duration) {
	m.wait.Record(context.Background(), waited.Seconds())
}
