package replay

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestEdgeIsFoundFromEverywhere(t *testing.T) {
	const low, high = -7, 12
	for want := low - 1; want <= high; want++ {
		for at := low - 2; at <= high+2; at++ {
			asked := map[int]bool{}
			got, err := edge(low, high, at, func(k int) (bool, error) {
				if asked[k] || k < low || k > high {
					t.Fatalf("%d was asked twice, or is out of bounds", k)
				}
				asked[k] = true
				return k <= want, nil
			})
			if err != nil || got != want || len(asked) > 10 {
				t.Errorf("from %d: %d, %v after %d questions, want %d", at, got, err, len(asked), want)
			}
		}
	}
	broken := errors.New("broken")
	if _, err := edge(low, high, 0, func(int) (bool, error) { return true, broken }); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
}

func TestArrangementsOfManyReplicasAreSpread(t *testing.T) {
	for n, want := range map[int]string{1: "none both", 2: "none both 1p1d", 4: "none both 1p3d 2p2d 3p1d"} {
		var names []string
		for _, a := range arrangements(n) {
			names = append(names, a.String())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%d replicas: %s, want %s", n, got, want)
		}
	}
	for _, n := range []int{16, 17, 40, 1000} {
		list := arrangements(n)
		if len(list) != 17 {
			t.Errorf("%d replicas have %d arrangements", n, len(list))
		}
		for i, a := range list[2:] {
			if err := a.check(n); err != nil || a.Prefill < 1 || a.Decode < 1 || i > 0 && a.Prefill <= list[i+1].Prefill {
				t.Errorf("%d replicas: %s after %s, %v", n, a, list[i+1], err)
			}
		}
	}
}

func TestNearDivisions(t *testing.T) {
	for _, tt := range []struct {
		n     int
		share float64
		want  string
	}{{1, 0.5, ""}, {2, 0.5, "1p1d"}, {4, 0.75, "2p2d 3p1d"}, {9, 0.6, "4p5d 5p4d 6p3d"}} {
		var names []string
		for _, a := range near(tt.n, tt.share) {
			names = append(names, a.String())
		}
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("%d replicas, share %v: %q, want %q", tt.n, tt.share, got, tt.want)
		}
	}
}

// planOf is a small question: long answers on three replicas.
func planOf(t *testing.T) (Options, Question) {
	t.Helper()
	trace, err := Generate("decode", short(240), 1)
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Traffic: Traffic{Trace: trace},
		Engines: Engines{Replicas: 3, Block: 512, Profile: Profiles()[0], Delays: LocalDelays(), Transfers: PublishedTransfers()},
		Runs:    Runs{Seeds: 1, Goal: Goal{TTFT: 2, TPOT: 0.03}},
	}, Question{Share: 0.95, Rate: 3, Step: 0.25, Curve: 2}
}

func TestPlanFindsWhereEachArrangementBreaks(t *testing.T) {
	plays(t)
	o, q := planOf(t)
	plan, err := MakePlan(o, q)
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Arrangements) != 4 || len(plan.Needs) != 3 {
		t.Fatalf("%d arrangements, %d needs", len(plan.Arrangements), len(plan.Needs))
	}
	for i := range plan.Arrangements {
		a := &plan.Arrangements[i]
		if a.Keeps == 0 || a.Breaks == 0 {
			t.Errorf("%s keeps the goal up to %v and breaks at %v", a.Name, a.Keeps, a.Breaks)
			continue
		}
		if ratio := a.Breaks / a.Keeps; math.Abs(ratio-1.25) > 1e-9 {
			t.Errorf("%s keeps the goal up to %v and breaks at %v: a step is 25 %%", a.Name, a.Keeps, a.Breaks)
		}
		if at := a.at(a.Keeps); at == nil || at.Good < q.Share || at.TTFTP50 <= 0 || at.TPOTP50 <= 0 {
			t.Errorf("%s at its highest load: %+v", a.Name, at)
		}
		if at := a.at(a.Breaks); at == nil || !at.Abandoned && at.Good >= q.Share || a.Cause == "" {
			t.Errorf("%s above its highest load: %+v, %q", a.Name, at, a.Cause)
		}
		if a.Keeps > plan.Arrangements[plan.best()].Keeps {
			t.Errorf("%s is better than %s", a.Name, plan.Best)
		}
	}
	// What is said of the replicas that the load needs is what a run of its own shows.
	p := plan.Needs[0].Replicas
	if p < 2 || plan.Needs[0].Kind != "none" || plan.Needs[2].Kind != kindFixed {
		t.Fatalf("needs: %+v", plan.Needs)
	}
	for n, keeps := range map[int]bool{p: true, p - 1: false} {
		o.Replicas, o.Rates, o.NoSaturation = n, []float64{q.Rate}, true
		o.Policies = []decision.Policy{decision.PredictedTTFT}
		r := play(t, o)
		if good := r.Policies[decision.PredictedTTFT].Steady; (good >= q.Share) != keeps {
			t.Errorf("%d replicas: %v of the answers are good, the plan takes %d", n, good, p)
		}
	}
}

func TestPlanDoesNotDependOnTheRunsAtOnce(t *testing.T) {
	o, q := planOf(t)
	o.Trace, o.Replicas, q.Rate, q.Step, o.Seeds = o.Trace.First(120), 2, 1, 0.5, 2
	var texts []string
	for _, workers := range []int{1, 5} {
		o.Workers = workers
		plan, err := MakePlan(o, q)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		var table, picture strings.Builder
		if err := errors.Join(plan.Table(&table), plan.Draw(&picture)); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text)+table.String()+picture.String())
		for _, want := range []string{"one pool", "1p1d", "best fixed division", "Not looked at:", "95 % of the answers"} {
			if !strings.Contains(table.String(), want) {
				t.Errorf("the table has no %q:\n%s", want, table.String())
			}
		}
		if n := strings.Count(picture.String(), "<polyline"); n != 6 {
			t.Errorf("the picture has %d curves, want 6", n)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("one worker: %s\nfive: %s", texts[0], texts[1])
	}
}

// A goal that no load keeps is said so, and so is one that the largest number of replicas does not keep.
func TestPlanOfAnImpossibleGoal(t *testing.T) {
	plays(t)
	o, q := planOf(t)
	o.Replicas, o.Goal.TPOT, q.Most, q.Curve = 2, 1e-3, 3, 0
	plan, err := MakePlan(o, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range plan.Arrangements {
		if a.Keeps != 0 || a.Breaks == 0 || a.Cause != "tpot" {
			t.Errorf("%+v", a)
		}
	}
	for _, n := range plan.Needs {
		if n.Replicas != 0 {
			t.Errorf("%+v", n)
		}
	}
	var table strings.Builder
	if err := plan.Table(&table); err != nil || plan.Best != "" || !strings.Contains(table.String(), "no load") || !strings.Contains(table.String(), "more than were tried") {
		t.Errorf("best %q, %v\n%s", plan.Best, err, table.String())
	}
	if err := plan.Draw(&table); err == nil {
		t.Error("a picture of nothing was drawn")
	}
}

func TestPlanRefusesBadQuestions(t *testing.T) {
	for name, change := range map[string]func(*Options, *Question){
		"share":    func(_ *Options, q *Question) { q.Share = 0.5 },
		"rate":     func(_ *Options, q *Question) { q.Rate = -1 },
		"step":     func(_ *Options, q *Question) { q.Step = 1e-4 },
		"most":     func(_ *Options, q *Question) { q.Most = 5000 },
		"curve":    func(_ *Options, q *Question) { q.Curve = 51 },
		"routers":  func(o *Options, _ *Question) { o.Routers = 2 },
		"replicas": func(o *Options, _ *Question) { o.Replicas = 0 },
		"trace":    func(o *Options, _ *Question) { o.Trace = nil },
		"programs": func(o *Options, _ *Question) { o.Programs = []int{3} },
	} {
		o, q := planOf(t)
		change(&o, &q)
		if _, err := MakePlan(o, q); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A run that is ended by its misses has exactly one more than allowed; one with fewer has the share that its report says.
func TestMissesAreThoseOfTheReport(t *testing.T) {
	plays(t)
	o, _ := planOf(t)
	p, err := newPlayer(o)
	if err != nil {
		t.Fatal(err)
	}
	run := func(missed float64) Numbers {
		n, err := p.run(&job{report: p.report(), setup: ruleset{Policy: decision.PredictedTTFT}, speed: 6 / p.work.rate(), seed: 1, missed: missed})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	all := run(0)
	counted := len(p.work.Calls) - len(p.work.Calls)/10
	if got := 1 - float64(all.late+all.slow)/float64(counted); math.Abs(got-all.Steady) > 1e-9 || all.Steady == 0 || all.Steady == 1 {
		t.Errorf("%d late and %d slow of %d leave %v, the report says %v", all.late, all.slow, counted, got, all.Steady)
	}
	if n := run(1 - all.Steady); n.Abandoned {
		t.Error("the run with the misses that are allowed was ended")
	}
	if n := run((1 - all.Steady) / 2); !n.Abandoned || n.late+n.slow != 1+int((1-all.Steady)/2*float64(counted)+1e-9) {
		t.Errorf("%v, %d late and %d slow", n.Abandoned, n.late, n.slow)
	}
}
