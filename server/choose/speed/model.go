package speed

import (
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// The prior: a 70B model on four GPUs. Only the ratio to reality matters, and a few samples correct it.
const (
	priorToken    = 1.0 / 8000 // seconds per prompt token at no context
	priorBend     = 50000      // tokens of context at which a prompt token costs twice that
	priorOverhead = 0.003      // seconds from booking to the engine and from its step back to the router
	priorBase     = 0.010      // seconds of a decode step with nothing to read
	priorSequence = 5e-5       // seconds per sequence of a decode step
	priorRead     = 2e-8       // seconds per token of context that a decode step reads

	// slowest and fastest bound a learned rate, in tokens per second.
	slowest = 20
	fastest = 5e6
	// shortestBend and longestBend bound the learned bend, in tokens.
	shortestBend = 4000
	longestBend  = 1e6
)

// Model predicts how long an engine takes. It is a plain value.
type Model struct {
	// Token is the time in seconds to prefill one token of a short prompt, Bend the context in tokens
	// at which attention has doubled it.
	Token, Bend float64
	// Overhead is the time in seconds that a request without a queue spends outside of engine steps.
	Overhead float64
	// Base is the time in seconds of a decode step with nothing to read, Load scales the prior's
	// cost of sequences and context.
	Base, Load float64
	// Samples counts the samples behind Token, Steps the samples behind Base and Load.
	Samples, Steps int
	// Spread is the uncertainty of Token: the truth is likely within Token·(1 ± Spread).
	Spread float64
	Source decision.SpeedSource
}

// priorSpread is the uncertainty of a guess: an order of magnitude.
const priorSpread = 10

// prior is the Model of an engine of which nothing is known.
func prior() Model {
	return Model{Token: priorToken, Bend: priorBend, Overhead: priorOverhead, Base: priorBase, Load: 1, Spread: priorSpread}
}

// Step is the time in seconds of a decode step of so many sequences that read context tokens.
func (m *Model) Step(sequences, context int) float64 {
	return m.Base + m.Load*stepLoad(sequences, context)
}

// stepLoad is the prior's cost of sequences and context in a decode step.
func stepLoad(sequences, context int) float64 {
	return priorSequence*float64(sequences) + priorRead*float64(context)
}

// follow scales the unknown decode times of the model by its prefill times: an engine
// that prefills faster than the prior is likely to decode faster, too.
func (m *Model) follow(sampled *stepFit) {
	m.Steps = sampled.count()
	if m.Steps > 0 {
		m.Base, m.Load = sampled.base, sampled.load
		return
	}
	scale := m.Token / priorToken
	m.Base, m.Load = priorBase*scale, scale
}

// ofKind is m as the belief about an equal of the rank.
func (m *Model) ofKind() Model {
	k := *m
	k.Source, k.Spread, k.Samples = decision.SpeedKind, max(2*m.Spread, 0.2), 0
	return k
}

// distrusted is m, the typical equal's, in place of own.
func (m *Model) distrusted(own *Model) Model {
	d := *m
	d.Source, d.Samples, d.Spread = decision.SpeedDistrusted, own.Samples, max(own.Spread, 1)
	return d
}

func boundToken(token float64) float64 { return min(max(token, 1/fastest), 1.0/slowest) }
