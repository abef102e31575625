package holdqueue

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// metrics are the queue's own: depth, bytes, wait, rejections.
type metrics struct {
	Wait     metric.Float64Histogram       `metric:"kvpilot.admission.wait" unit:"s" bounds:"0.001 0.005 0.01 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 300" help:"Time that requests waited in the hold queue before they were sent to a rank."`
	Depth    metric.Int64ObservableGauge   `metric:"kvpilot.admission.requests" unit:"{request}" help:"Requests waiting in the hold queue."`
	Bytes    metric.Int64ObservableGauge   `metric:"kvpilot.admission.bytes" unit:"By" help:"Memory held by the requests in the hold queue."`
	Rejected metric.Int64ObservableCounter `metric:"kvpilot.admission.refusals" unit:"{request}" by:"cause" help:"Requests that the hold queue rejected, by cause."`

	rejected [len(causes)]atomic.Int64
}

// causes are the reasons of a rejection, with the names that metrics and public errors use.
var causes = [...]struct {
	err  error
	name string
}{
	{errFull, "queue_full"}, {errBytes, "queue_bytes"}, {errDeadline, "deadline"},
	{errTimeout, "timeout"}, {errShutdown, "shutdown"}, {errShare, "queue_share"},
}

// Cause is the name of a rejection in metrics and public errors.
func Cause(err error) string { return causes[causeOf(err)].name }

func causeOf(err error) int {
	for i := range causes {
		if errors.Is(err, causes[i].err) {
			return i
		}
	}
	return 0
}

func newMetrics(provider metric.MeterProvider, q *Queue) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/choose/holdqueue", m).Observe(func(o metric.Observer) {
		o.ObserveInt64(m.Depth, q.count.Load())
		o.ObserveInt64(m.Bytes, q.bytes.Load())
		for i := range causes {
			o.ObserveInt64(m.Rejected, m.rejected[i].Load(), instruments.Label("cause", causes[i].name))
		}
	})
	return m
}

func (m *metrics) reject(err error) { m.rejected[causeOf(err)].Add(1) }

func (m *metrics) released(waited time.Duration) {
	m.Wait.Record(context.Background(), waited.Seconds())
}
