package booking

import (
	"cmp"
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/number"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Metrics measure the decisions and their bookings.
type Metrics struct {
	Rejected, Races atomic.Int64
	decisions       decisions
	Shadow          shadows
	// Adapters counts the bookings of requests with a LoRA adapter by where the rank has it.
	Adapters instruments.Keyed[decision.AdapterState]
}

// NewMetrics declares the metrics of bookings.
func NewMetrics(s *instruments.Set) *Metrics {
	return &Metrics{
		decisions: newDecisions(s),
		Adapters: instruments.NewKeyed(s, "kvpilot.chooser.adapter_choices", "{request}", "Requests with a LoRA adapter by where the chosen rank has it: running (with requests in flight), resident (in GPU memory), absent (to be loaded), full (as many other adapters run as the engine can run at once).",
			append(decision.AdapterStates(), decision.AdapterNone), func(st decision.AdapterState) metric.MeasurementOption {
				return instruments.Label("state", cmp.Or(st.String(), "unknown"))
			}),
	}
}

// decisions measures the decisions that are booked.
type decisions struct {
	took     metric.Float64Histogram
	made     metric.Int64Counter
	policies map[decision.Policy]metric.MeasurementOption
	ways     ways
}

// ways counts the requests by the way in which they are served.
type ways struct {
	count              metric.Int64Counter
	whole, split, copy metric.MeasurementOption
}

func newWays(s *instruments.Set) ways {
	m := ways{whole: instruments.Label("way", "whole"), split: instruments.Label("way", "split"), copy: instruments.Label("way", "copy")}
	m.count = s.CounterBy("kvpilot.chooser.ways", "{request}", "Requests that could be split, by the cheapest way: whole (one rank), split (one rank computes the prompt, another one writes the answer) or copy (one rank, after a copy of the prompt's beginning).", m.whole, m.split, m.copy)
	return m
}

func (m *ways) add(d *decision.Decision) {
	switch {
	case len(d.Ways) == 0:
	case d.Split() != nil:
		m.count.Add(context.Background(), 1, m.split)
	case d.Copied() != nil:
		m.count.Add(context.Background(), 1, m.copy)
	default:
		m.count.Add(context.Background(), 1, m.whole)
	}
}

func newDecisions(s *instruments.Set) decisions {
	m := decisions{policies: map[decision.Policy]metric.MeasurementOption{}, ways: newWays(s)}
	var policies []metric.MeasurementOption
	for _, p := range decision.Policies() {
		m.policies[p] = instruments.Label("policy", string(p))
		policies = append(policies, m.policies[p])
	}
	m.policies[decision.PolicyOther] = instruments.Label("policy", string(decision.PolicyOther))
	m.took = s.Histogram("kvpilot.chooser.duration", "s", "Time to decide and book, without waiting in the hold queue.",
		5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2)
	m.made = s.CounterBy("kvpilot.chooser.decisions", "{decision}", "Requests placed on a rank, by policy.", policies...)
	return m
}

func (m *decisions) decided(d *decision.Decision) {
	ctx := context.Background()
	m.took.Record(ctx, d.Took.Seconds(), m.policies[d.Policy])
	m.made.Add(ctx, 1, m.policies[d.Policy])
	m.ways.add(d)
}

// shadows counts the decisions by whether the shadow policy agreed.
type shadows struct {
	Agreed, Differed atomic.Int64
	regret           number.Float // seconds, summed
}

func (m *shadows) add(s *decision.Shadow) {
	if s.Agrees {
		m.Agreed.Add(1)
		return
	}
	m.Differed.Add(1)
	m.regret.Add(s.Regret)
}

// Metrics declares the regret, and returns the function that reads it.
func (m *shadows) Metrics(s *instruments.Set) (observe func(metric.Observer)) {
	regret := s.ObservedFloat("kvpilot.chooser.shadow_regret", "s", "Sum of the additional predicted first-token time of the shadow policy's choices.")
	return func(o metric.Observer) { o.ObserveFloat64(regret, m.regret.Get()) }
}
