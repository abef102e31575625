package selector_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// pairing has a class for all candidates, each of a replica of its own.
func pairing(roles ...replica.Role) *selector.Pairing {
	p := &selector.Pairing{Classes: 1, Lanes: []selector.Lane{{Start: 0.025, PerToken: 4.4e-6}}}
	for i, role := range roles {
		p.Members = append(p.Members, selector.Member{Owner: int32(i), Prefills: role != replica.DecodeOnly, Decodes: role != replica.PrefillOnly})
	}
	return p
}

// ranked makes a decision among candidates that compute 10,000 tokens per second.
func ranked(prompt int, candidates ...decision.Candidate) *decision.Decision {
	for i := range candidates {
		c := &candidates[i]
		c.RankID = decision.RankID{Replica: replica.ID(rune('A' + i)), Slot: replica.Slot(i)}
		c.BlockSize, c.TokenTime, c.StepTime, c.Overhead = 16, 1e-4, 0.01, 0.005
	}
	return &decision.Decision{
		Rule: decision.Rule{Policy: decision.PredictedTTFT, Params: selector.DefaultParams()}, Prompt: decision.Prompt{PromptTokens: prompt, ExpectedOutput: 200},
		Fleet: decision.Fleet{Omega: 1}, Ranks: decision.Ranks{Candidates: candidates, Chosen: -1},
	}
}

func TestRequestIsSplitWhereThatCostsLess(t *testing.T) {
	decoding := decision.Candidate{RankLoad: decision.RankLoad{Requests: 40}}
	for _, tt := range []struct {
		name       string
		prompt     int
		roles      []replica.Role
		candidates []decision.Candidate
		change     func(*decision.Decision, *selector.Pairing)
		// way is "A" for the request whole on A, "AB" for a prefill on A and the answer on B.
		way string
	}{
		{
			name: "a long prompt would delay many decodes", prompt: 20000, way: "AB", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
		},
		{
			name: "a short one would not", prompt: 50, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
		},
		{
			name: "a bonus is worth the transfer", prompt: 100, way: "AB", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
			change:     func(d *decision.Decision, _ *selector.Pairing) { d.Params.SplitBonus = 1000 },
		},
		{
			name: "no bonus makes a pair", prompt: 100, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.PrefillOnly},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
			change:     func(d *decision.Decision, _ *selector.Pairing) { d.Params.SplitBonus = 1000 },
		},
		{
			name: "the one that decodes holds nearly all of it", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, {RankLoad: decoding.RankLoad, Overlap: decision.Overlap{GPU: 19984}}},
		},
		{
			name: "the one that prefills has a long queue", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole, Forecast: decision.Forecast{Backlog: 30}}, decoding},
		},
		{
			name: "an idle replica is as good as two", prompt: 20000, way: "A", roles: []replica.Role{replica.AnyRole, replica.DecodeOnly},
			candidates: []decision.Candidate{{}, decoding},
		},
		{
			name: "one has the prefix, another one room to decode", prompt: 20000, way: "AC", roles: []replica.Role{replica.AnyRole, replica.AnyRole, replica.AnyRole},
			candidates: []decision.Candidate{
				{Overlap: decision.Overlap{GPU: 19200}, Forecast: decision.Forecast{Crowding: 0}, RankLoad: decision.RankLoad{Requests: 60}, Pace: decision.Pace{}},
				{Forecast: decision.Forecast{Backlog: 4}}, {},
			},
			change: func(d *decision.Decision, _ *selector.Pairing) { d.Candidates[0].Decode = 5 },
		},
		{
			name: "the network is slow", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
			change: func(_ *decision.Decision, p *selector.Pairing) {
				p.Lanes[0] = selector.Lane{Start: 0.3, PerToken: 1e-3}
			},
		},
		{
			name: "the groups do not mix", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
			change:     func(_ *decision.Decision, p *selector.Pairing) { p.Lanes[0].Closed = true },
		},
		{
			name: "ranks of one replica do not pair", prompt: 20000, way: "B", roles: []replica.Role{replica.AnyRole, replica.AnyRole},
			candidates: []decision.Candidate{{Forecast: decision.Forecast{Decode: 30}}, decoding},
			change:     func(_ *decision.Decision, p *selector.Pairing) { p.Members[1].Owner = 0 },
		},
		{
			name: "the one that would prefill is stalled", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoStalled}, decoding},
		},
		{
			name: "only the whole request keeps its target", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole, Forecast: decision.Forecast{Backlog: 1}}, decoding},
			change: func(d *decision.Decision, _ *selector.Pairing) {
				d.Objective, d.Targets.TTFT = decision.ObjectiveSLO, 2500*time.Millisecond
			},
		},
		{
			name: "another policy splits nothing", prompt: 20000, way: "B", roles: []replica.Role{replica.PrefillOnly, replica.AnyRole},
			candidates: []decision.Candidate{{Veto: decision.VetoRole}, decoding},
			change:     func(d *decision.Decision, _ *selector.Pairing) { d.Policy = decision.OverlapLoad },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, p := ranked(tt.prompt, tt.candidates...), pairing(tt.roles...)
			d.Splittable = true
			if tt.change != nil {
				tt.change(d, p)
			}
			selector.Choose(d)
			selector.Split(d, p, nil)
			got := string(d.Pick().Replica)
			if w := d.Split(); w != nil {
				got = string(w.Prefill.Replica) + string(w.Decode.Replica)
				if d.Pick().RankID != w.Decode || d.Reason != decision.ReasonSplit || d.Margin <= 0 {
					t.Errorf("picked %s for %q with margin %v", d.Pick().Replica, d.Reason, d.Margin)
				}
			}
			if got != tt.way {
				t.Errorf("%s, want %s: %+v", got, tt.way, d.Ways)
			}
		})
	}
}

// Whatever the numbers are, the way that is taken is the cheapest of all, and its ranks may do what they are to do.
func TestCheapestWayIsTaken(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	splits := 0
	for range 20000 {
		d := randomDecision(r)
		d.Policy, d.Params.Temperature = decision.PredictedTTFT, 0
		p := &selector.Pairing{Classes: 1 + r.IntN(3)}
		for i := range d.Candidates {
			d.Candidates[i].RankID = decision.RankID{Replica: "r", Slot: replica.Slot(i)}
			m := selector.Member{Owner: int32(r.IntN(len(d.Candidates))), Class: int16(r.IntN(p.Classes))}
			m.Prefills, m.Decodes = r.IntN(3) > 0, r.IntN(3) > 0
			if !m.Prefills && !m.Decodes {
				m.Class = -1
			}
			if m.Prefills && !m.Decodes && d.Candidates[i].Veto == decision.VetoNone {
				d.Candidates[i].Veto = decision.VetoRole
			}
			p.Members = append(p.Members, m)
		}
		for range p.Classes * p.Classes {
			p.Lanes = append(p.Lanes, selector.Lane{Start: r.Float64() / 10, PerToken: r.Float64() * 1e-5, Closed: r.IntN(4) == 0})
		}
		selector.Choose(d)
		chosen := d.Chosen
		selector.Split(d, p, nil)
		w := d.Split()
		if w == nil {
			if d.Chosen != chosen || len(d.Ways) > 1 && d.Ways[1].Cost < d.Ways[0].Cost-math.Abs(d.Ways[0].Cost)/50-0.002 {
				t.Fatalf("not split: %+v", d.Ways)
			}
			continue
		}
		splits++
		from, to := p.Members[w.Prefill.Slot], p.Members[w.Decode.Slot]
		switch {
		case w.Cost >= d.Ways[1].Cost, d.Ways[1].IsSplit():
			t.Fatalf("not the cheapest: %+v", d.Ways)
		case !from.Prefills, !to.Decodes, from.Owner == to.Owner, p.Lanes[int(from.Class)*p.Classes+int(to.Class)].Closed:
			t.Fatalf("%+v and %+v do not pair", from, to)
		case d.Candidates[w.Decode.Slot].Veto != decision.VetoNone:
			t.Fatalf("decodes on a vetoed rank: %v", d.Candidates[w.Decode.Slot].Veto)
		case math.IsNaN(w.Cost), math.IsNaN(w.TTFT), w.TTFT < 0:
			t.Fatalf("%+v", w)
		}
		if again, same := selector.Recompute(d); !same {
			t.Fatalf("recomputes to %d, was %d: %+v", again.Chosen, d.Chosen, d.Ways)
		}
	}
	if splits < 500 {
		t.Errorf("only %d of 20000 were split", splits)
	}
}
