package booking

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/number"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// Metrics measure the decisions and their bookings.
type Metrics struct {
	Rejected instruments.Total                  `metric:"kvpilot.chooser.refused" unit:"{request}" help:"Requests that no replica could serve."`
	Races    instruments.Total                  `metric:"kvpilot.chooser.races" unit:"{request}" help:"Choices repeated because another request booked the rank first."`
	Took     metric.Float64Histogram            `metric:"kvpilot.chooser.duration" unit:"s" by:"policy" bounds:"5e-6 1e-5 2e-5 5e-5 1e-4 2e-4 5e-4 1e-3 5e-3 2e-2" help:"Time to decide and book, without waiting in the hold queue."`
	Made     instruments.Keyed[decision.Policy] `metric:"kvpilot.chooser.decisions" unit:"{decision}" by:"policy" help:"Requests placed on a rank, by policy."`
	Ways     instruments.Keyed[string]          `metric:"kvpilot.chooser.ways" unit:"{request}" by:"way" values:"whole split copy" help:"Requests that could be split, by the cheapest way: whole (one rank), split (one rank computes the prompt, another one writes the answer) or copy (one rank, after a copy of the prompt's beginning)."`
	Ahead    instruments.Total                  `metric:"kvpilot.chooser.copies_ahead" unit:"{copy}" help:"Copies of prompts that began before the calls for which they are made, because a fork was expected."`
	// Adapters counts the bookings of requests with a LoRA adapter by where the rank has it.
	Adapters instruments.Keyed[residence] `metric:"kvpilot.chooser.adapter_choices" unit:"{request}" by:"state" help:"Requests with a LoRA adapter by where the chosen rank has it: running (with requests in flight), resident (in GPU memory), absent (to be loaded), full (as many other adapters run as the engine can run at once)."`
	Shadow   shadows
}

// residence is where a rank has a request's LoRA adapter.
type residence decision.AdapterState

// String is the form that metrics use.
func (r residence) String() string { return cmp.Or(decision.AdapterState(r).String(), "unknown") }

// Know makes the series whose labels are known.
func (m *Metrics) Know() {
	m.Made.Know(decision.Policies()...)
	m.Made.Expect(decision.PolicyOther)
	for _, state := range append(decision.AdapterStates(), decision.AdapterNone) {
		m.Adapters.Know(residence(state))
	}
}

func (m *Metrics) decided(d *decision.Decision) {
	m.Took.Record(context.Background(), d.Took.Seconds(), m.Made.Label(d.Policy))
	m.Made.Add(d.Policy)
	switch {
	case len(d.Ways) == 0:
	case d.Split() != nil:
		m.Ways.Add("split")
	case d.Copied() != nil:
		m.Ways.Add("copy")
	default:
		m.Ways.Add("whole")
	}
}

// shadows counts the decisions by whether the shadow policy agreed.
type shadows struct {
	Agreed   instruments.Total             `metric:"kvpilot.chooser.shadow_agreed" unit:"{request}" help:"Decisions with which the shadow policy agreed."`
	Differed instruments.Total             `metric:"kvpilot.chooser.shadow_differed" unit:"{request}" help:"Decisions that the shadow policy would have made differently."`
	Regret   metric.Float64ObservableGauge `metric:"kvpilot.chooser.shadow_regret" unit:"s" help:"Sum of the additional predicted first-token time of the shadow policy's choices."`

	regret number.Float // seconds, summed
}

func (m *shadows) add(s *decision.Shadow) {
	if s.Agrees {
		m.Agreed.Add(1)
		return
	}
	m.Differed.Add(1)
	m.regret.Add(s.Regret)
}

// Observe reports the regret.
func (m *shadows) Observe(o metric.Observer) { o.ObserveFloat64(m.Regret, m.regret.Get()) }
