package warm

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// outcome is how a pull ended.
type outcome uint8

const (
	outcomeOK outcome = iota
	outcomeIncomplete
	outcomeFailed
	outcomeBusy
	outcomes
)

func (o outcome) String() string {
	return [outcomes]string{"ok", "incomplete", "failed", "busy"}[o]
}

type metrics struct {
	Took   metric.Float64Histogram    `metric:"kvpilot.peers.pull" unit:"s" by:"outcome" bounds:"0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60" help:"Time to pull a peer's index, by outcome: ok, incomplete, failed."`
	Served instruments.Keyed[outcome] `metric:"kvpilot.peers.pulls_served" unit:"{pull}" by:"outcome" help:"Pulls of this router's index by peers, by outcome: ok, failed, busy."`
}

func newMetrics(provider metric.MeterProvider) *metrics {
	m := &metrics{}
	instruments.Declare(provider, "server/peers/warm", m)
	m.Served.Know(outcomeOK, outcomeFailed, outcomeBusy)
	return m
}

func (m *metrics) pulled(how outcome, took time.Duration) {
	m.Took.Record(context.Background(), took.Seconds(), instruments.Label("outcome", how.String()))
}
