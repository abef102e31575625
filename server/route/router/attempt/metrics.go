package attempt

import (
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// attemptMetrics counts attempts.
type attemptMetrics struct {
	retries instruments.Keyed[retry.Verdict]
	aborted metric.Int64Counter
	keyless keyless
	faults  faults
	legs    legMetrics
	copies  instruments.Keyed[string]
}

func newAttemptMetrics(p metric.MeterProvider, log *slog.Logger) *attemptMetrics {
	s := instruments.New(p, "server/route/router")
	m := &attemptMetrics{keyless: keyless{log: log}, faults: newFaults(s), legs: newLegMetrics(s), copies: newCopyResults(s)}
	retryable := slices.DeleteFunc(retry.Verdicts(), func(v retry.Verdict) bool { return !v.Retryable() })
	m.retries = instruments.NewKeyed(s, intake.MetricNS+"retries", "{attempt}", "Attempts on another replica, by the outcome of the previous attempt.", retryable,
		func(v retry.Verdict) metric.MeasurementOption { return instruments.Label("outcome", v.String()) })
	m.aborted = s.Counter(intake.MetricNS+"aborted", "{answer}", "Answers that an engine aborted (finish reason abort), such as one that was paused or put to sleep.")
	m.keyless.counter = s.CounterBy(intake.MetricNS+"keyless", "{request}", "Requests placed by load because they lack their policy's key, by reason: no_prompt, truncated, no_text, no_session, or why there are no token ids.")
	return m
}

// remembered adds the number of requests that are known to fail everywhere to the metrics.
func (*attemptMetrics) remembered(p metric.MeterProvider, size func() int) {
	s := instruments.New(p, "server/route/router")
	gauge := s.ObservedGauge(intake.MetricNS+"poison", "{request}", "Remembered requests that failed in the same way on two replicas: they are not retried, and count against no replica.")
	s.Observe(func(o metric.Observer) { o.ObserveInt64(gauge, int64(size())) })
}
