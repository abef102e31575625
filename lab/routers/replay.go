package main

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/replay"
)

// played is the result of kvpilot replay for the same requests at the same rate.
type played struct {
	TTFT      float64 `json:"ttft_mean_s"`
	TTFTP99   float64 `json:"ttft_p99_s"`
	Cached    float64 `json:"cached_share"`
	Imbalance float64 `json:"imbalance"`
	Oracle    float64 `json:"oracle_ttft_mean_s"`
}

func (o *options) replayOptions(t *replay.Trace, atLeast int) replay.Options {
	block := 128
	if t.Chunk < block {
		block = t.Chunk
	}
	known := 0.0
	if slices.ContainsFunc(t.After, func(before int) bool { return before >= 0 }) {
		known = 1 // kvpilot does not wait for the ids behind a known turn
	}
	return replay.Options{Traffic: replay.Traffic{Trace: t, AtLeast: atLeast}, Engines: replay.Engines{Replicas: o.replicas, Profile: replay.Profiles()[0], Hardware: replay.Hardware{Speeds: o.replicaSpeeds()}, Block: block}, Routing: replay.Routing{Beginnings: known}, Runs: replay.Runs{Seeds: 1, NoSaturation: true}}
}

// capacity is the rate at which a fleet with one pooled cache is full.
func (o *options) capacity(t *replay.Trace, atLeast int) (float64, error) {
	r := o.replayOptions(t, atLeast)
	r.Load = 1
	rep, err := replay.Play(r)
	if err != nil {
		return 0, err
	}
	return rep.RPS, nil
}

// play has replay play a cell in virtual time under the default policy.
func (o *options) play(c *cell) (*played, error) {
	t, rate := c.trace.Trace, c.Rate
	if t.Closed {
		t = c.trace.timed(o.seconds)
		rate = float64(len(t.Calls)) / o.seconds
	}
	full, err := o.capacity(t, 0)
	if err != nil {
		return nil, err
	}
	r := o.replayOptions(t, 0)
	r.Load, r.Policies = rate/full, []decision.Policy{decision.PredictedTTFT}
	rep, err := replay.Play(r)
	if err != nil {
		return nil, err
	}
	n := rep.Policies[decision.PredictedTTFT]
	return &played{TTFT: n.Mean, TTFTP99: n.P99, Cached: n.HitRate, Imbalance: n.Imbalance, Oracle: rep.Oracle.Mean}, nil
}

// replicaSpeeds is each replica's speed as a multiple of the profile's.
func (e *engines) replicaSpeeds() []float64 {
	speeds := make([]float64, e.replicas)
	for n := range speeds {
		speeds[n] = e.factor(n)
	}
	return speeds
}
