package selector_test

import (
	"math"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestPrefixIsCopiedWhereThatCostsLess(t *testing.T) {
	const prompt, held = 20_000, 19_200
	holder := decision.Candidate{Overlap: decision.Overlap{GPU: held}, Forecast: decision.Forecast{Planned: 2}}
	three := []replica.Role{replica.AnyRole, replica.AnyRole, replica.AnyRole}
	for _, tt := range []struct {
		name       string
		roles      []replica.Role
		candidates []decision.Candidate
		change     func(*selector.Copying, *selector.Pairing)
		from, to   int // -2: no copy
		later      bool
	}{
		{name: "many wait for the holder", candidates: []decision.Candidate{holder, {}, {Forecast: decision.Forecast{Backlog: 1}}}, from: 0, to: 1},
		{name: "few do", candidates: []decision.Candidate{holder, {}, {}}, change: func(c *selector.Copying, _ *selector.Pairing) { c.Sharers = 3 }, from: -2},
		{name: "nobody waits", candidates: []decision.Candidate{{Overlap: holder.Overlap}, {}, {}}, from: -2},
		{name: "nobody holds it", candidates: []decision.Candidate{{}, {}, {}}, from: -2},
		{name: "the network is slow", candidates: []decision.Candidate{holder, {}, {}}, change: func(_ *selector.Copying, p *selector.Pairing) { p.Lanes[0] = selector.Lane{Start: 3} }, from: -2},
		{name: "there is no way between them", candidates: []decision.Candidate{holder, {}, {}}, change: func(_ *selector.Copying, p *selector.Pairing) { p.Lanes[0].Closed = true }, from: -2},
		{name: "the others only prefill", roles: []replica.Role{replica.AnyRole, replica.PrefillOnly, replica.PrefillOnly}, candidates: []decision.Candidate{holder, {Veto: decision.VetoRole}, {Veto: decision.VetoRole}}, from: -2},
		{name: "the holder computes nothing for others", roles: []replica.Role{replica.DecodeOnly, replica.AnyRole, replica.AnyRole}, candidates: []decision.Candidate{holder, {}, {}}, from: -2},
		{name: "a copy is under way to the next one", candidates: []decision.Candidate{holder, {}, {}}, change: traffic(1, selector.Traffic{Closed: true}), from: 0, to: 2, later: false},
		{name: "it is the prefix", candidates: []decision.Candidate{holder, {}, {Forecast: decision.Forecast{Backlog: 1}}}, change: traffic(1, selector.Traffic{Closed: true, Coming: held, Arrives: 0.05}), from: -1, to: 1},
		{name: "the source fails", candidates: []decision.Candidate{holder, {}, {}}, change: traffic(0, selector.Traffic{Closed: true, Resting: true}), from: -2},
		{name: "another holder is free", candidates: []decision.Candidate{holder, {}, {Overlap: holder.Overlap, Forecast: decision.Forecast{Planned: 2}}}, change: traffic(0, selector.Traffic{Sends: 1}), from: 2, to: 1},
		{name: "the only one is busy with other copies", candidates: []decision.Candidate{holder, {}, {}}, change: traffic(0, selector.Traffic{Sends: 0.5}), from: 0, to: 1, later: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			roles := tt.roles
			if roles == nil {
				roles = three
			}
			d, p := ranked(prompt, tt.candidates...), pairing(roles...)
			c := selector.Copying{Able: true, Sharers: 8}
			if tt.change != nil {
				tt.change(&c, p)
			}
			selector.Choose(d)
			below := d.Pick().Cost - selector.LeastGain(d.Pick().Cost)
			got, ok := c.Cheapest(d, p, below)
			if !ok {
				got.From = -2
			}
			if got.From != tt.from || ok && (got.To != tt.to || got.Later != tt.later) {
				t.Fatalf("%+v, want %d to %d, later %v", got, tt.from, tt.to, tt.later)
			}
			if ok && (got.Cost >= below || got.Held != held || got.From >= 0 && got.Moved != held || math.Abs(got.Prefill-0.08) > 0.01) {
				t.Errorf("%+v", got)
			}
			if w := got.Way(d); ok && (w.Kind() != "copy" || w.IsSplit() || w.TTFT < got.Arrives || w.Decode.Slot != replica.Slot(tt.to)) {
				t.Errorf("the record has %+v", w)
			}
		})
	}
}

// traffic sets the traffic of candidate i of three.
func traffic(i int, to selector.Traffic) func(*selector.Copying, *selector.Pairing) {
	return func(c *selector.Copying, _ *selector.Pairing) {
		c.Traffic = make([]selector.Traffic, 3)
		c.Traffic[i] = to
	}
}

// The more requests share the prefix, the less each pays for the cache that a copy displaces.
func TestDisplacedCacheIsSharedByThoseWhoWait(t *testing.T) {
	cost := func(sharers int) float64 {
		d := ranked(20_000, decision.Candidate{Overlap: decision.Overlap{GPU: 19_200}, Forecast: decision.Forecast{Planned: 2}},
			decision.Candidate{Revisits: decision.Revisits{Returns: 1, Saved: 3}, Forecast: decision.Forecast{}})
		d.Candidates[1].Busy = 0.5
		selector.Choose(d)
		c := selector.Copying{Able: true, Sharers: sharers}
		got, ok := c.Cheapest(d, pairing(replica.AnyRole, replica.AnyRole), d.Pick().Cost)
		if !ok {
			t.Fatalf("nothing is copied for %d", sharers)
		}
		return got.Cost
	}
	if few, many := cost(4), cost(40); few <= many {
		t.Errorf("with 4 sharers a copy costs %v, with 40 %v", few, many)
	}
}
