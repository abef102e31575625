package replay

import (
	"math"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestParseRoles(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Roles
		bad  bool
	}{
		{text: "none"},
		{text: "both", want: Roles{Both: 8}},
		{text: "2p6d", want: Roles{Prefill: 2, Decode: 6}},
		{text: "1p3d4b", want: Roles{Prefill: 1, Decode: 3, Both: 4}},
		{text: "2p5d", bad: true},
		{text: "8p", bad: true},
		{text: "p8d", bad: true},
		{text: "2p2p4d", bad: true},
		{text: "8", bad: true},
		{text: "0p8d", bad: true},
		{text: "", bad: false},
	} {
		got, err := ParseRoles(tt.text, 8)
		if (err != nil) != tt.bad || !tt.bad && got != tt.want {
			t.Errorf("%q: %+v, %v", tt.text, got, err)
		}
		if again, err := ParseRoles(got.String(), 8); !tt.bad && (err != nil || again != got) {
			t.Errorf("%q is written as %q, which is read as %+v, %v", tt.text, got, again, err)
		}
	}
}

// One request that is split takes the prefill of one engine, the transfer, and the decode steps of the other; the engine that computed has all of
// its memory again.
func TestSplitRequestInVirtualTime(t *testing.T) {
	p := Profiles()[0]
	trace := &Trace{Name: "one", Chunk: 512, Calls: []Call{{In: 20_480, Out: 100, Prev: -1}}}
	for id := range uint64(40) {
		trace.Calls[0].IDs = append(trace.Calls[0].IDs, id+1)
	}
	s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 2, 512), 1, 1)
	s.legs.Transfers = PublishedTransfers()
	d := &splitter{sim: s}
	s.router = d
	s.run(0)
	m := p.model(512)
	prefill := 10*m.Timing.Base.Seconds() + m.Timing.Prefill(20_480, 0)
	want := prefill + s.legs.Start + s.legs.PerToken*20_480 + m.Timing.Base.Seconds() + m.Timing.Prefill(1, 20_479)
	if got := s.first[0]; math.Abs(got-want) > 1e-3 {
		t.Errorf("the first token came after %.4f s, want %.4f", got, want)
	}
	if s.ended != 1 || d.computed != 1 || s.legs.splits != 1 || s.cached[0] != 0 {
		t.Errorf("%d ended, %d computed elsewhere, %d split, %d cached", s.ended, d.computed, s.legs.splits, s.cached[0])
	}
	for _, e := range s.engines {
		if e.machine.Pool().Free() != e.machine.Pool().Size() {
			t.Errorf("engine %d: %d of %d blocks are free", e.slot, e.machine.Pool().Free(), e.machine.Pool().Size())
		}
	}
	if made := s.engines[1].machine.Counts().GenerationTokens; made != 100 {
		t.Errorf("the engine that answers made %d tokens", made)
	}
}

// splitter has engine 0 compute every prompt and engine 1 answer it.
type splitter struct {
	sim      *sim
	computed int
}

func (d *splitter) arrive(call int)        { splits{d.sim}.split(call, 0, 1, func(*attempt) { d.computed++ }) }
func (d *splitter) firstToken(*attempt)    {}
func (d *splitter) progress(*attempt, int) {}
func (d *splitter) finished(*attempt)      {}
func (d *splitter) changed(int, []kvEvent) {}

func TestTransfersOfOneLinkFollowEachOther(t *testing.T) {
	l := legs{Transfers: Transfers{Start: 0.1, PerToken: 1e-3}, links: make([]link, 3)}
	for i, want := range []float64{1.1, 2.1, 2.1} {
		from, to := 0, 1
		if i == 2 {
			from, to = 2, 2
			l.links[2].out = 1.1
		}
		if got := l.take(0, from, to, 1000); math.Abs(got-want) > 1e-9 {
			t.Errorf("transfer %d ends at %v, want %v", i, got, want)
		}
	}
}

// Each rule of splits does what its name says, in one report.
func TestSplitRulesAreCompared(t *testing.T) {
	plays(t)
	trace, err := Generate("decode", 200, 1)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Traffic: Traffic{Trace: trace, Rates: []float64{4}}, Engines: Engines{Replicas: 4, Block: 512, Profile: Profiles()[0], Delays: LocalDelays(), Transfers: PublishedTransfers()},
		Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}, Roles: []Roles{{}, {Both: 4}, {Prefill: 2, Decode: 2}}, Splits: SplitRules()},
		Runs:  Runs{Seeds: 1, NoSaturation: true},
	}
	r := play(t, o)
	if len(r.Policies) != 15 {
		t.Fatalf("%d setups were played: %v", len(r.Policies), r.order)
	}
	share := func(name string) float64 { return r.Policies[decision.Policy("predicted-ttft"+name)].Split }
	if share("") != 0 || share(" both never") != 0 || share(" both always") != 1 || share(" 2p2d always") != 1 {
		t.Errorf("shares of splits: %v without roles, %v never, %v and %v always", share(""), share(" both never"), share(" both always"), share(" 2p2d always"))
	}
	if s := share(" both dynamo-1.6"); s <= 0.3 || s >= 0.95 {
		t.Errorf("a threshold of 2,048 tokens splits %v", s)
	}
	if s := share(" both llm-d-0.10"); s != 1 {
		t.Errorf("a threshold of 16 tokens splits %v of fresh prompts", s)
	}
	if s := share(" 2p2d"); s <= 0.3 {
		t.Errorf("with roles, %v are split by price", s)
	}
	o.Roles = []Roles{{Prefill: 3, Decode: 2}}
	if _, err := Play(o); err == nil {
		t.Error("roles of five replicas are taken for four")
	}
}

// The branches of a fork begin several times as soon with copies of their context as without, and no engine keeps a block of it pinned.
func TestForksBeginSoonerWithCopies(t *testing.T) {
	trace, err := Generate("fork", 660, 1)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Traffic: Traffic{Trace: trace, Rates: []float64{1}}, Engines: Engines{Replicas: 8, Block: 512, Profile: Profiles()[0], Delays: LocalDelays(), Transfers: PublishedTransfers()},
		Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}, Roles: []Roles{{}, {Both: 8}}, Splits: []SplitRule{SplitByPrice, SplitOnly}},
		Runs:  Runs{Seeds: 1, NoSaturation: true},
	}
	r := play(t, o)
	pool, with, without := r.Policies["predicted-ttft"], r.Policies["predicted-ttft both"], r.Policies["predicted-ttft both splits-only"]
	if with.Copies < 0.1 || with.Copies > 0.2 || pool.Copies != 0 || without.Copies != 0 {
		t.Errorf("copies per request: %v, %v in one pool, %v without", with.Copies, pool.Copies, without.Copies)
	}
	got := with.Programs.Branches.P90
	for name, other := range map[string]PolicyReport{"one pool": pool, "splits alone": without} {
		if p90 := other.Programs.Branches.P90; p90 < 3*got {
			t.Errorf("p90 of the branches' first tokens: %.2f s with copies, %.2f s with %s", got, p90, name)
		}
	}
	if with.HitRate < pool.HitRate {
		t.Errorf("hit rate %v with copies, %v without", with.HitRate, pool.HitRate)
	}
}
