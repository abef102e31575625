package reload

import (
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

type metrics struct {
	Reloads instruments.Keyed[string]     `metric:"kvpilot.config.reloads" unit:"{reload}" by:"result" help:"Reloads of the settings, by result: applied, unchanged, checked (dry run), refused (wrong settings), failed (rolled back), closed (while shutting down)."`
	Last    metric.Float64ObservableGauge `metric:"kvpilot.config.last.success" unit:"s" help:"Time of the last successful check of the settings, in seconds since 1970."`
	Info    metric.Int64ObservableGauge   `metric:"kvpilot.config.info" unit:"{version}" by:"hash version" help:"1, with version and digest of the settings (secrets left out): routers with equal settings have equal ones."`
	Waiting metric.Int64ObservableGauge   `metric:"kvpilot.config.restart.settings" unit:"{setting}" help:"Changed settings that take effect with the next start."`
}

// gauges are the figures about the current settings.
type gauges struct {
	version uint64
	hash    string
	seconds float64
	waiting int
}

func newMetrics(p metric.MeterProvider, read func() gauges) *metrics {
	m := &metrics{}
	s := instruments.Declare(p, "server/kit/reload", m)
	m.Reloads.Know(resultApplied, resultUnchanged, resultChecked, resultRefused, resultFailed, resultClosed)
	s.Observe(func(o metric.Observer) {
		g := read()
		o.ObserveFloat64(m.Last, g.seconds)
		o.ObserveInt64(m.Waiting, int64(g.waiting))
		o.ObserveInt64(m.Info, 1, instruments.Labels(attribute.String("hash", g.hash), attribute.String("version", strconv.FormatUint(g.version, 10))))
	})
	return m
}

func (m *Manager[C]) gauges() gauges {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.versions[len(m.versions)-1]
	return gauges{version: v.Number, hash: v.Hash, seconds: float64(m.last.UnixNano()) / 1e9, waiting: m.waiting}
}
