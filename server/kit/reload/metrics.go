package reload

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// The results of a reload, in the metric's words.
const (
	resultApplied   = "applied"
	resultUnchanged = "unchanged"
	resultChecked   = "checked"
	resultRefused   = "refused"
	resultFailed    = "failed"
	resultClosed    = "closed"
)

type metrics struct{ reloads metric.Int64Counter }

// gauges are the figures about the current settings.
type gauges struct {
	version uint64
	hash    string
	seconds float64
	waiting int
}

func newMetrics(p metric.MeterProvider, read func() gauges) *metrics {
	s := instruments.New(p, "server/kit/reload")
	m := &metrics{reloads: s.CounterBy("kvpilot.config.reloads", "{reload}",
		"Reloads of the settings, by result: applied, unchanged, checked (dry run), refused (wrong settings), failed (rolled back), closed (while shutting down).",
		instruments.Values("result", resultApplied, resultUnchanged, resultChecked, resultRefused, resultFailed, resultClosed)...)}
	last := s.ObservedFloat("kvpilot.config.last.success", "s", "Time of the last successful check of the settings, in seconds since 1970.")
	info := s.ObservedGauge("kvpilot.config.info", "{version}",
		"1, with version and digest of the settings (secrets left out): routers with equal settings have equal ones.")
	waiting := s.ObservedGauge("kvpilot.config.restart.settings", "{setting}", "Changed settings that take effect with the next start.")
	s.Observe(func(o metric.Observer) {
		g := read()
		o.ObserveFloat64(last, g.seconds)
		o.ObserveInt64(waiting, int64(g.waiting))
		o.ObserveInt64(info, 1, instruments.Labels(attribute.String("hash", g.hash), attribute.String("version", strconv.FormatUint(g.version, 10))))
	})
	return m
}

func (m *metrics) count(ctx context.Context, result string) {
	m.reloads.Add(context.WithoutCancel(ctx), 1, instruments.Label("result", result))
}

func (m *Manager[C]) gauges() gauges {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.versions[len(m.versions)-1]
	return gauges{version: v.Number, hash: v.Hash, seconds: float64(m.last.UnixNano()) / 1e9, waiting: m.waiting}
}
