package reload

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// What a reload may come to, as the metric says it.
const (
	resultApplied   = "applied"
	resultUnchanged = "unchanged"
	resultChecked   = "checked"
	resultRefused   = "refused"
	resultFailed    = "failed"
	resultClosed    = "closed"
)

type metrics struct{ reloads metric.Int64Counter }

// gauges are what is shown of the settings in force.
type gauges struct {
	version uint64
	hash    string
	seconds float64
	waiting int
}

func newMetrics(p metric.MeterProvider, read func() gauges) (*metrics, error) {
	if p == nil {
		p = noop.NewMeterProvider()
	}
	meter := p.Meter("github.com/kvpilot/kvpilot/server/kit/reload")
	m := &metrics{}
	var err error
	if m.reloads, err = meter.Int64Counter("kvpilot.config.reloads", metric.WithUnit("{reload}"),
		metric.WithDescription("Reloads of the settings, by result: applied, unchanged, checked (dry run), refused (wrong settings), failed (rolled back), closed (while shutting down).")); err != nil {
		return nil, err
	}
	for _, result := range []string{resultApplied, resultUnchanged, resultChecked, resultRefused, resultFailed, resultClosed} {
		m.reloads.Add(context.Background(), 0, resultOption(result))
	}
	last, err := meter.Float64ObservableGauge("kvpilot.config.last.success", metric.WithUnit("s"),
		metric.WithDescription("Time of the last successful check of the settings, in seconds since 1970."))
	if err != nil {
		return nil, err
	}
	info, err := meter.Int64ObservableGauge("kvpilot.config.info", metric.WithUnit("{version}"),
		metric.WithDescription("1, with the version of the settings in force and a digest of them (secrets left out): routers with equal settings have equal ones."))
	if err != nil {
		return nil, err
	}
	waiting, err := meter.Int64ObservableGauge("kvpilot.config.restart.settings", metric.WithUnit("{setting}"),
		metric.WithDescription("Changed settings that take effect with the next start."))
	if err != nil {
		return nil, err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		g := read()
		o.ObserveFloat64(last, g.seconds)
		o.ObserveInt64(waiting, int64(g.waiting))
		o.ObserveInt64(info, 1, metric.WithAttributes(attribute.String("hash", g.hash), attribute.String("version", strconv.FormatUint(g.version, 10))))
		return nil
	}, last, info, waiting)
	return m, err
}

func resultOption(result string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("result", result))
}

func (m *metrics) count(ctx context.Context, result string) {
	m.reloads.Add(context.WithoutCancel(ctx), 1, resultOption(result))
}

func (m *Manager[C]) gauges() gauges {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.versions[len(m.versions)-1]
	return gauges{version: v.Number, hash: v.Hash, seconds: float64(m.last.UnixNano()) / 1e9, waiting: m.waiting}
}
