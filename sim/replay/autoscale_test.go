package replay

import (
	"math"
	"reflect"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestParseScaleRule(t *testing.T) {
	for text, good := range map[string]bool{
		"wanted": true, "queue:5": true, "queue:0.5": true, "requests:8": true, "fixed:3": true,
		"wanted:2": false, "queue": false, "queue:": false, "queue:0": false, "queue:-1": false, "queue:x": false, "queue:NaN": false, "requests:+Inf": false,
		"fixed:1.5": false, "fixed:0": false, "none": false, "": false,
	} {
		r, err := ParseScaleRule(text)
		if (err == nil) != good || good && r.String() != text {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}

func TestWave(t *testing.T) {
	for _, bad := range []string{"", "10m", "10m:", ":0.1", "10m:1.1", "10m:-1", "0s:0.5", "10m:NaN"} {
		if _, err := ParseWave(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	w, err := ParseWave("100s:0.25")
	if err != nil || w != (Wave{Period: 100, Low: 0.25}) {
		t.Fatalf("%+v, %v", w, err)
	}
	// 1,000 calls per period: those near the trough come a quarter as fast as those near the peak, and whole periods are as long as before.
	var trough, peak int
	last := -1.0
	for i := range 1000 {
		at := w.warp(float64(i) / 10)
		if at < last {
			t.Fatalf("call %d comes at %v, the one before at %v", i, at, last)
		}
		last = at
		switch {
		case at < 5 || at >= 95:
			trough++
		case at >= 45 && at < 55:
			peak++
		}
	}
	if ratio := float64(trough) / float64(peak); math.Abs(ratio-0.25) > 0.03 {
		t.Errorf("%d calls in the trough, %d at the peak", trough, peak)
	}
	if at := w.warp(300); math.Abs(at-300) > 1e-6 {
		t.Errorf("the third period ends at %v", at)
	}
	if at := (Wave{}).warp(7); at != 7 {
		t.Errorf("without a wave a call at 7 comes at %v", at)
	}
}

// The number of replicas follows the rules of Kubernetes' documents.
func TestDesiredReplicas(t *testing.T) {
	c := DefaultScaling()
	a := &autoscaler{service: &service{sim: &sim{}}, settings: c, phases: make([]phase, 20)}
	for _, step := range []struct {
		at      float64
		metric  float64
		current int
		want    int
		why     string
	}{
		{0, 3, 1, 3, "up at once"},
		{15, 19, 3, 7, "four more at most"},
		{30, 40, 7, 14, "twice as many at most"},
		{45, 40, 14, 20, "never more than there are"},
		{400, 10.9, 10, 10, "within the tolerance"},
		{415, 11.1, 10, 12, "outside of it, rounded up"},
		{430, 5, 12, 12, "not fewer while a look of the last five minutes asked for more"},
		{716, 5, 12, 5, "fewer after it"},
		{1100, 0, 5, 1, "never fewer than the least"},
	} {
		a.sim.now = step.at
		if got := a.desired(step.metric, step.current); got != step.want {
			t.Errorf("%s: of %d replicas with a metric of %v become %d, want %d", step.why, step.current, step.metric, got, step.want)
		}
	}
	a.settings.Least, a.recent = 0, nil
	for metric, want := range map[float64]int{0: 0, 0.2: 1, 9: 1} {
		if got := a.desired(metric, 0); got != want {
			t.Errorf("from zero with a metric of %v: %d, want %d", metric, got, want)
		}
	}
}

// scaledOf is a small load that rises and falls under some rules.
func scaledOf(t *testing.T, rules ...ScaleRule) Options {
	t.Helper()
	trace, err := Generate("decode", 300, 1)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Traffic: Traffic{Trace: trace, Rates: []float64{1}, Wave: Wave{Period: 150, Low: 0.1}},
		Engines: Engines{Replicas: 4, Delays: LocalDelays()},
		Rules:   Rules{Policies: []decision.Policy{decision.PredictedTTFT}},
		Scaling: DefaultScaling(), Runs: Runs{NoSaturation: true},
	}
	o.Scaling.Start, o.Scaling.Stabilize, o.Scaling.Down, o.Scaling.Rules = 20, 30, 15, rules
	return o
}

func TestAutoscalersFollowTheLoad(t *testing.T) {
	rules := []ScaleRule{{Kind: ScaleWanted}, {Kind: ScaleQueue, N: 1}, {Kind: ScaleRequests, N: 8}, {Kind: ScaleFixed, N: 2}}
	o := scaledOf(t, rules...)
	r := play(t, o)
	for _, rule := range rules {
		p := r.Policies[ruleset{Policy: decision.PredictedTTFT, Scale: rule}.name()]
		s := p.Scaled
		if s == nil || s.Lost != 0 || p.Goodput <= 0 {
			t.Errorf("%s: %+v, good %v", rule, s, p.Goodput)
			continue
		}
		if math.Abs(s.GPUSeconds-4*s.ReplicaSeconds) > 1e-6 || s.Mean > s.Most || s.Most > 4 {
			t.Errorf("%s: %+v", rule, s)
		}
		fixed := rule.Kind == ScaleFixed
		if fixed != (s.Starts == 0) || fixed && (s.Mean != 2 || s.Most != 2) {
			t.Errorf("%s: %+v", rule, s)
		}
		if rule.Kind == ScaleRequests && (s.Mean > 3.5 || s.Most < 3 || s.Starts < 3) {
			t.Errorf("%s starts and stops too little: %+v", rule, s)
		}
	}
	if again := play(t, o); !reflect.DeepEqual(again, r) {
		t.Error("a second run is different")
	}
}

// An autoscaler that changes nothing is no autoscaler.
func TestFixedReplicasAreThoseWithoutAnAutoscaler(t *testing.T) {
	o := scaledOf(t, ScaleRule{Kind: ScaleFixed, N: 3})
	o.Replicas = 3
	scaled := play(t, o).Policies["predicted-ttft fixed:3"].Numbers
	o.Scaling.Rules = nil
	plain := play(t, o).Policies[decision.PredictedTTFT].Numbers
	if scaled.Scaled == nil {
		t.Fatal("no figures of the autoscaler")
	}
	if scaled.Scaled = nil; !reflect.DeepEqual(scaled, plain) {
		t.Errorf("fixed: %+v\nplain: %+v", scaled, plain)
	}
}

// Requests that come before the first replica wait for it, also after all replicas have been stopped; none is lost.
func TestReplicasStartFromZero(t *testing.T) {
	trace, err := Generate("decode", 60, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range trace.Calls {
		trace.Calls[i].At = float64(i) * 0.5
		if i >= 30 {
			trace.Calls[i].At += 2000 // long after the rest has been forgotten
		}
	}
	o := scaledOf(t, ScaleRule{Kind: ScaleWanted}, ScaleRule{Kind: ScaleQueue, N: 5}, ScaleRule{Kind: ScaleRequests, N: 8})
	o.Trace, o.Wave, o.Rates, o.Scaling.Least = trace, Wave{}, []float64{trace.rate()}, 0
	r := play(t, o)
	for _, name := range r.order {
		s := r.Policies[name].Scaled
		if s.Lost != 0 || s.Wakes < 2 {
			t.Errorf("%s: %+v", name, s)
		}
		if s.Woken < o.Scaling.Start || s.Woken > o.Scaling.Start+1 {
			t.Errorf("%s: the first answer came %v s after the order of a replica that takes %v s", name, s.Woken, o.Scaling.Start)
		}
		if s.ReplicaSeconds > 1800 {
			t.Errorf("%s: %v replica-seconds: they were not stopped", name, s.ReplicaSeconds)
		}
	}
}

func TestBadAutoscalersAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"rule":        func(o *Options) { o.Scaling.Rules = []ScaleRule{{Kind: "other"}} },
		"fixed":       func(o *Options) { o.Scaling.Rules = []ScaleRule{{Kind: ScaleFixed, N: 5}} },
		"least":       func(o *Options) { o.Scaling.Least = 5 },
		"sync":        func(o *Options) { o.Scaling.Sync = 0 },
		"start":       func(o *Options) { o.Scaling.Start = -1 },
		"utilization": func(o *Options) { o.Scaling.Utilization = 1.5 },
		"routers":     func(o *Options) { o.Routers = 2 },
		"roles":       func(o *Options) { o.Roles = []Roles{{Both: 4}} },
	} {
		o := scaledOf(t, ScaleRule{Kind: ScaleWanted})
		o.Profile, o.Block, o.Seeds = Profiles()[0], 512, 1
		change(&o)
		if _, err := Play(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
