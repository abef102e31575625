package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func play(t *testing.T, o Options) *Report {
	t.Helper()
	if o.Profile.Name == "" {
		o.Profile = Profiles()[0]
	}
	if o.Block == 0 {
		o.Block = 512
	}
	if o.Seeds == 0 {
		o.Seeds = 1
	}
	r, err := Play(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func generated(t *testing.T, name string, n int) *Trace {
	t.Helper()
	trace, err := Generate(name, n, 1)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// The default policy must keep its lead over every other policy, on loads of different kinds.
func TestTheDefaultKeepsItsLead(t *testing.T) {
	if os.Getenv("KVPILOT_QUALITY") == "" {
		t.Skip("plays whole traces for ten minutes: make quality-check runs it")
	}
	for _, tt := range []struct {
		trace string
		load  float64
	}{{"conv", 0.7}, {"conv", 0.95}, {"hotdoc", 0.95}, {"synth", 0.95}} {
		r := play(t, Options{Traffic: Traffic{Trace: generated(t, tt.trace, 3000), Load: tt.load}, Engines: Engines{Replicas: 8}, Rules: Rules{Policies: decision.Policies()}, Runs: Runs{Patience: 20}})
		own := r.Policies[decision.PredictedTTFT]
		for name, p := range r.Policies {
			if name == decision.PredictedTTFT {
				continue
			}
			if own.Mean > 0.97*p.Mean {
				t.Errorf("%s at %.2f: mean %.2f s, %s has %.2f s", tt.trace, tt.load, own.Mean, name, p.Mean)
			}
		}
		if limit := 0.95; own.SaturationVsOracle < limit {
			t.Errorf("%s: saturation %.2f of the pooled cache's, want %.2f", tt.trace, own.SaturationVsOracle, limit)
		}
	}
}

// The short form of it for every run: one trace against the strongest rules.
func TestTheDefaultLeadsOnAShortTrace(t *testing.T) {
	plays(t)
	rivals := []decision.Policy{decision.PredictedTTFT, decision.OverlapLoad, decision.WeightedScorers, decision.LeastTokens}
	r := play(t, Options{Traffic: Traffic{Trace: generated(t, "conv", 2500), Load: 0.95}, Engines: Engines{Replicas: 8}, Rules: Rules{Policies: rivals}, Runs: Runs{NoSaturation: true}})
	own := r.Policies[decision.PredictedTTFT]
	for _, name := range rivals[1:] {
		if own.Mean > 0.95*r.Policies[name].Mean {
			t.Errorf("mean %.2f s, %s has %.2f s", own.Mean, name, r.Policies[name].Mean)
		}
	}
	if own.VsOracle > 1.1 {
		t.Errorf("mean is %.2f of the pooled cache's", own.VsOracle)
	}
}

func TestWrongRatesAndLostEventsCostLittle(t *testing.T) {
	if os.Getenv("KVPILOT_QUALITY") == "" {
		t.Skip("plays a trace five times: make quality-check runs it")
	}
	base := Options{Traffic: Traffic{Trace: generated(t, "conv", 6000), Load: 0.7}, Engines: Engines{Replicas: 8}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{NoSaturation: true}}
	mean := func(change func(*Options)) float64 {
		o := base
		change(&o)
		return play(t, o).Policies[decision.PredictedTTFT].Mean
	}
	plain := mean(func(*Options) {})
	// Halved rates cost 8 to 18 % on this trace with 5,000, 6,000 or 7,000 requests, 13 % on average.
	for name, tt := range map[string]struct {
		most   float64
		change func(*Options)
	}{
		"rates doubled": {1.15, func(o *Options) { o.PaceBias = 2 }},
		"rates halved":  {1.2, func(o *Options) { o.PaceBias = 0.5 }},
		"1 % lost":      {1.05, func(o *Options) { o.EventLoss = 0.01 }},
		"5 s late":      {1.05, func(o *Options) { o.Delays.Event = 5 }},
	} {
		if got := mean(tt.change); got > tt.most*plain {
			t.Errorf("%s: mean %.2f s, without %.2f s", name, got, plain)
		} else {
			t.Logf("%s: %.3f of the mean", name, got/plain)
		}
	}
}

func TestRunsRepeat(t *testing.T) {
	plays(t)
	o := Options{Traffic: Traffic{Trace: generated(t, "synth", 600), Load: 0.9}, Engines: Engines{Replicas: 4}, Rules: Rules{Policies: decision.Policies()}, Runs: Runs{Workers: 2}}
	a, err := json.Marshal(play(t, o))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(play(t, o))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
}

// A run that is given up says no more than what playing it to its end confirms.
func TestHopelessRunsAreGivenUp(t *testing.T) {
	plays(t)
	o := Options{Traffic: Traffic{Trace: generated(t, "hotdoc", 1500), Load: 0.9}, Engines: Engines{Replicas: 4}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT, decision.Random}}, Runs: Runs{NoSaturation: true}}
	whole := play(t, o)
	o.Patience = whole.Policies[decision.Random].VsOracle / 2
	part := play(t, o)
	given := part.Policies[decision.Random]
	if limit := o.Patience * part.Oracle.Mean; !given.Abandoned || given.Mean != limit || given.Mean > whole.Policies[decision.Random].Mean {
		t.Errorf("%+v, want a mean of at least %v s; to its end it has %v s", given, limit, whole.Policies[decision.Random].Mean)
	}
	if !reflect.DeepEqual(part.Policies[decision.PredictedTTFT], whole.Policies[decision.PredictedTTFT]) || !reflect.DeepEqual(part.Oracle, whole.Oracle) {
		t.Error("patience changed a run that was not given up")
	}
	var text bytes.Buffer
	if err := part.Table(&text); err != nil || !strings.Contains(text.String(), fmt.Sprintf(">%.1f", given.Mean)) {
		t.Errorf("the table does not say so: %v\n%s", err, text.String())
	}
	text.Reset()
	if err := Plot(&text, []*Report{part}); err != nil || !strings.Contains(text.String(), "given up") {
		t.Errorf("the plot does not say so: %v", err)
	}
}

// Several loads at once are the same as one after the other.
func TestLoadsMayBePlayedTogether(t *testing.T) {
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", short(500)), Load: 0.9}, Engines: Engines{Replicas: 4, Block: 512, Profile: Profiles()[0]}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT, decision.LeastTokens}}, Runs: Runs{Seeds: 2}}
	one, err := Play(o)
	if err != nil {
		t.Fatal(err)
	}
	both, err := PlayLoads(o, 0.5, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(one, both[1]) || both[0].Load != 0.5 || both[0].Oracle.Mean >= both[1].Oracle.Mean {
		t.Errorf("alone %+v\ntogether %+v", one, both)
	}
}

func TestEveryGeneratorPlays(t *testing.T) {
	plays(t)
	for _, name := range Generators() {
		trace := generated(t, name, 200)
		r := play(t, Options{Traffic: Traffic{Trace: trace, Load: 0.6}, Engines: Engines{Replicas: 4, Block: 128}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}})
		p := r.Policies[decision.PredictedTTFT]
		if p.Mean <= 0 || math.IsNaN(p.Mean) || p.P99 < p.P50 || p.HitRate < 0 || p.HitRate >= 1 || p.SaturationRPS <= 0 {
			t.Errorf("%s: %+v", name, p)
		}
		var text bytes.Buffer
		if err := r.Table(&text); err != nil || !strings.Contains(text.String(), "predicted-ttft") {
			t.Errorf("%s: table %q, %v", name, text.String(), err)
		}
		text.Reset()
		if err := Plot(&text, []*Report{r}); err != nil || !strings.Contains(text.String(), "<svg") {
			t.Errorf("%s: plot of %d bytes, %v", name, text.Len(), err)
		}
	}
}

func TestTracesAreRead(t *testing.T) {
	open := `{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}

{"timestamp": 6000, "input_length": 1200, "output_length": 7, "hash_ids": [1, 2, 3]}`
	trace, err := parseTrace(strings.NewReader(open))
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Calls) != 2 || trace.Closed || trace.Calls[1].At != 3 || trace.Calls[1].In != 1200 || trace.Calls[0].Session != trace.Calls[1].Session {
		t.Errorf("open loop: %+v", trace.Calls)
	}
	closed := `{"id": "a", "requests": [{"in": 1024, "out": 600, "think_time": 1, "h": [10, 11]}, {"in": 2048, "out": 9, "think_time": 2.5, "h": [10, 13]}]}
{"id": "b", "requests": [{"in": 512, "out": 3, "think_time": 0, "h": [10, 10]}]}`
	if trace, err = parseTrace(strings.NewReader(closed)); err != nil {
		t.Fatal(err)
	}
	if !trace.Closed || len(trace.Calls) != 3 || trace.Calls[1].Prev != 0 || trace.Calls[2].Prev != -1 || trace.Chunk != 512 {
		t.Errorf("closed loop: %+v", trace)
	}
	if got := trace.Calls[0].IDs; !slices.Equal(got, []uint64{10, 11, 12}) {
		t.Errorf("the first call's ids %v lack those of its output that the second continues", got)
	}
	for name, text := range map[string]string{
		"empty": "", "not JSON": "{", "no length": `{"timestamp": 1}`,
		"mixed": `{"input_length": 5}` + "\n" + `{"id": "a", "requests": [{"in": 5, "out": 1, "h": [1, 1]}]}`,
	} {
		if _, err := parseTrace(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestThePublicTraceIsRead(t *testing.T) {
	path := "../../../shared/traces/mooncake_conversation_trace.jsonl.gz"
	if _, err := os.Stat(path); err != nil {
		t.Skip("the public trace is not here")
	}
	trace, err := ReadTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Calls) != 12031 || trace.tokens()/len(trace.Calls) != 12035 {
		t.Errorf("%d calls of %d tokens on average, want 12031 of 12035", len(trace.Calls), trace.tokens()/len(trace.Calls))
	}
}

// One request alone takes the time that the model's formula gives.
func TestTheEngineKeepsTheModel(t *testing.T) {
	p := Profiles()[0]
	trace := &Trace{Name: "one", Chunk: 512, Calls: []Call{{In: 4096, Out: 101, IDs: []uint64{1, 2, 3, 4, 5, 6, 7, 8}, Prev: -1}}}
	s := newSim(newWorkload(trace, 512), newEngines(&p, Hardware{}, 1, 512), 1, 1)
	s.router = &oracle{sim: s, left: make([]float64, 1), work: make([]float64, 1)}
	s.run(0)
	m := p.Timing
	want := 2*m.Base.Seconds() + m.Prefill(2048, 0) + m.Prefill(2048, 2048)
	if math.Abs(s.first[0]-want) > 1e-9 {
		t.Errorf("first token after %v s, want %v", s.first[0], want)
	}
	decode := 0.0
	for i := range 100 {
		decode += m.Base.Seconds() + m.PerSequence.Seconds() + m.PerContextToken.Seconds()*float64(4096+i)
	}
	if math.Abs(s.now-want-decode) > 1e-6 {
		t.Errorf("the end came after %v s, want %v", s.now, want+decode)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	trace := generated(t, "conv", 50)
	good := Options{Traffic: Traffic{Trace: trace, Load: 0.5}, Engines: Engines{Replicas: 2, Block: 512, Profile: Profiles()[0]}, Runs: Runs{Seeds: 1}}
	for name, change := range map[string]func(*Options){
		"no trace": func(o *Options) { o.Trace = nil }, "block": func(o *Options) { o.Block = 100 }, "replicas": func(o *Options) { o.Replicas = 0 },
		"load": func(o *Options) { o.Load = 0 }, "seeds": func(o *Options) { o.Seeds = 0 }, "policy": func(o *Options) { o.Policies = []decision.Policy{"x"} },
		"too long": func(o *Options) { o.Profile.CacheTokens = 512 },
	} {
		o := good
		change(&o)
		if _, err := Play(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
