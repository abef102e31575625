package splits_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/route/splits"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func always(splits.Side) bool { return true }

func two(stable, canary int) []splits.Side {
	return []splits.Side{{Name: "stable", Model: "v1", Weight: stable}, {Name: "canary", Model: "v2", Weight: canary}}
}

func stepping() *splits.Splits {
	c := splits.DefaultConfig()
	c.StepBack = true
	return splits.New(c, splits.Params{})
}

func TestASessionStaysOnItsSideAndAWeightMovesOnlyItsOwn(t *testing.T) {
	s := stepping()
	sides := func(canary int) map[string]string {
		got := map[string]string{}
		for i := range 4000 {
			key := fmt.Sprint("session ", i)
			got[key] = s.Assign("m", two(100-canary, canary), key, always).Side
		}
		return got
	}
	ten, again, twenty, none := sides(10), sides(10), sides(20), sides(0)
	canaries, more := 0, 0
	for key, side := range ten {
		if again[key] != side {
			t.Fatalf("%s was on %s and is on %s", key, side, again[key])
		}
		if side == "canary" {
			canaries++
			if twenty[key] != "canary" {
				t.Errorf("%s left the canary, whose weight grew", key)
			}
		}
		if twenty[key] == "canary" {
			more++
		}
		if none[key] != "stable" {
			t.Errorf("%s is on a side of weight 0", key)
		}
	}
	if canaries < 320 || canaries > 480 || more < 680 || more > 920 {
		t.Errorf("of 4000 sessions %d and %d are on the canary, want about 400 and 800", canaries, more)
	}
}

func TestASideWithoutAReadyReplicaGetsNoRequests(t *testing.T) {
	s := stepping()
	stableOnly := func(side splits.Side) bool { return side.Name == "stable" }
	moved := 0
	for i := range 200 {
		a := s.Assign("m", two(50, 50), fmt.Sprint(i), stableOnly)
		if a.Side != "stable" {
			t.Fatalf("request %d is on %s", i, a.Side)
		}
		if a.InsteadOf == "canary" {
			moved++
		}
	}
	if moved < 60 || moved > 140 {
		t.Errorf("%d of 200 say that they are not on the canary", moved)
	}
	none := func(splits.Side) bool { return false }
	if a := s.Assign("m", two(0, 1), "k", none); a.Side != "canary" || a.InsteadOf != "" {
		t.Errorf("where no side is ready the request is on %s instead of %q", a.Side, a.InsteadOf)
	}
	for _, side := range s.List()[0].Sides {
		if side.Ready {
			t.Errorf("%s is listed as ready", side.Name)
		}
	}
}

// load is what one side does.
type load struct {
	fails  float64
	first  time.Duration // median
	decode time.Duration
}

// play sends requests of new sessions until the canary has stepped back, at most n, and returns how many went to the canary.
func play(s *splits.Splits, dice *rand.Rand, n int, of map[string]load) (canaries int) {
	for i := range n {
		a := s.Assign("m", two(80, 20), fmt.Sprint(dice.Uint64(), i), always)
		if a.Side == "canary" {
			canaries++
		}
		l := of[a.Side]
		first := time.Duration(float64(l.first) * (.5 + dice.ExpFloat64()))
		a.Ended(splits.End{Failed: dice.Float64() < l.fails, FirstToken: first, Took: first + time.Duration(float64(l.decode)*(.5+dice.ExpFloat64()))})
		if s.List()[0].Sides[1].Back != nil {
			break
		}
	}
	return canaries
}

func TestAClearlyWorseCanaryStepsBack(t *testing.T) {
	good := load{fails: .002, first: 200 * time.Millisecond, decode: 4 * time.Second}
	for name, tc := range map[string]struct {
		canary load
		why    string
		within int // requests of the canary
	}{
		"all fail":      {load{fails: 1}, "requests failed", 50},
		"some fail":     {load{fails: .2, first: good.first, decode: good.decode}, "requests failed", 200},
		"slow prefills": {load{fails: .002, first: 2 * good.first, decode: good.decode}, "first tokens take", 200},
		"slow decodes":  {load{fails: .002, first: good.first, decode: 2 * good.decode}, "whole answers take", 200},
	} {
		t.Run(name, func(t *testing.T) {
			s, dice := stepping(), rand.New(rand.NewPCG(1, 2))
			canaries := play(s, dice, 20_000, map[string]load{"stable": good, "canary": tc.canary})
			side := s.List()[0].Sides[1]
			if side.Back == nil || !strings.Contains(side.Back.Why, tc.why) || side.Back.By != "rule" || canaries > tc.within {
				t.Fatalf("after %d requests of the canary: %+v", canaries, side)
			}
			for i := range 2000 { // it gets nothing more, however good it is now
				a := s.Assign("m", two(80, 20), fmt.Sprint("later", i), always)
				if a.Side != "stable" {
					t.Fatalf("request %d went to the side that stepped back", i)
				}
				a.Ended(splits.End{FirstToken: 10 * time.Second, Took: time.Minute})
			}
			if err := s.Set("m", "canary", false, "alice"); err != nil {
				t.Fatal(err)
			}
			if n := play(s, dice, 3000, map[string]load{"stable": good, "canary": good}); n < 450 || s.List()[0].Sides[1].Back != nil {
				t.Errorf("forward again it got %d requests of 3000: %+v", n, s.List()[0].Sides[1])
			}
		})
	}
}

// Sides that are the same step back hardly ever, and one that is a little slower never does.
func TestChanceStepsNothingBack(t *testing.T) {
	same := load{fails: .05, first: 200 * time.Millisecond, decode: time.Second}
	for name, canary := range map[string]load{"equal": same, "a little slower": {fails: .05, first: 220 * time.Millisecond, decode: 1100 * time.Millisecond}} {
		backs, seeds := 0, uint64(60)
		if testing.Short() || raceEnabled {
			seeds = 10
		}
		for seed := range seeds {
			s := stepping()
			play(s, rand.New(rand.NewPCG(seed, 3)), 6000, map[string]load{"stable": same, "canary": canary})
			if s.List()[0].Sides[1].Back != nil {
				backs++
			}
		}
		if backs > 0 {
			t.Errorf("%s: %d of %d canaries stepped back after 1,200 requests each", name, backs, seeds)
		}
	}
}

func TestOneSessionCannotStepASideBack(t *testing.T) {
	s := stepping()
	fail := func(key string, n int) {
		for range n {
			s.Assign("m", two(50, 50), key, always).Ended(splits.End{Failed: true, Took: time.Second})
		}
	}
	good := 0
	var bad string
	for i := 0; good < 400; i++ {
		a := s.Assign("m", two(50, 50), fmt.Sprint(i), always)
		if bad == "" && a.Side == "canary" {
			bad = fmt.Sprint(i)
			continue
		}
		good++
		a.Ended(splits.End{FirstToken: time.Second, Took: 2 * time.Second})
	}
	fail(bad, 5000)
	if side := s.List()[0].Sides[1]; side.Back != nil || side.Failed != 5000 {
		t.Errorf("one session's failures: %+v", side)
	}
}

func TestWithoutTheSettingNothingStepsBackAndTheListSaysIt(t *testing.T) {
	s := splits.New(splits.DefaultConfig(), splits.Params{})
	play(s, rand.New(rand.NewPCG(1, 2)), 2000, map[string]load{"stable": {first: time.Second, decode: time.Second}, "canary": {fails: 1}})
	side := s.List()[0].Sides[1]
	if side.Back != nil || !strings.Contains(side.Worse, "requests failed") {
		t.Errorf("the canary: %+v", side)
	}
}

func TestCallersSendSidesBackAndForward(t *testing.T) {
	s := splits.New(splits.DefaultConfig(), splits.Params{})
	if err := s.Set("m", "canary", true, "alice"); !errors.Is(err, splits.ErrUnknown) {
		t.Errorf("a split that is not in use: %v", err)
	}
	s.Assign("m", two(90, 10), "k", always)
	if err := s.Set("m", "other", true, "alice"); !errors.Is(err, splits.ErrUnknown) {
		t.Errorf("a side that there is not: %v", err)
	}
	if err := s.Set("m", "stable", true, "alice"); err != nil {
		t.Fatal(err)
	}
	if a := s.Assign("m", two(90, 10), "k2", always); a.Side != "canary" {
		t.Errorf("the request is on %s", a.Side)
	}
	if err := s.Set("m", "canary", true, "alice"); !errors.Is(err, splits.ErrLast) {
		t.Errorf("the last side: %v", err)
	}
	if back := s.List()[0].Sides[0].Back; back == nil || back.By != "alice" {
		t.Errorf("back: %+v", back)
	}
	// New sides begin anew; a side that stays keeps its state.
	s.Assign("m", []splits.Side{{Name: "stable", Model: "v1", Weight: 1}, {Name: "canary", Model: "v3", Weight: 1}}, "k", always)
	if r := s.List()[0]; r.Sides[0].Back == nil || r.Sides[1].Model != "v3" || r.Sides[1].Requests != 0 {
		t.Errorf("after a change of the canary: %+v", r)
	}
}

func TestComparisonsCoverTheLastHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := splits.New(splits.DefaultConfig(), splits.Params{})
		a := s.Assign("m", two(100, 0), "k", always)
		for range 99 {
			a.Ended(splits.End{FirstToken: 100 * time.Millisecond, Took: time.Second, Regret: .5, HasRegret: true})
		}
		a.Ended(splits.End{Failed: true, Took: time.Hour})
		side := s.List()[0].Sides[0]
		if side.Requests != 100 || side.Failed != 1 || !side.Baseline || side.Regret != .5 || !side.Shadowed {
			t.Errorf("counted %+v", side)
		}
		for got, want := range map[time.Duration]time.Duration{side.FirstP50: 100 * time.Millisecond, side.WholeP99: time.Second} {
			if ratio := float64(got) / float64(want); ratio < .95 || ratio > 1.05 {
				t.Errorf("a quantile is %v, want %v", got, want)
			}
		}
		time.Sleep(59 * time.Minute)
		s.Assign("m", two(100, 0), "k", always)
		time.Sleep(11 * time.Minute)
		if side := s.List()[0].Sides[0]; side.Requests != 0 {
			t.Errorf("after 70 minutes %d requests are left", side.Requests)
		}
		time.Sleep(time.Hour)
		if list := s.List(); len(list) != 0 {
			t.Errorf("a split without requests is listed: %+v", list)
		}
	})
}

func TestSplitsAreBounded(t *testing.T) {
	s := stepping()
	for i := range 1000 {
		s.Assign(fmt.Sprint("m", i), two(1, 1), "k", always).Ended(splits.End{Took: time.Second})
	}
	if n := len(s.List()); n != 256 {
		t.Errorf("%d splits are remembered", n)
	}
}

func TestNoSplitsAreValid(t *testing.T) {
	var s *splits.Splits
	if a := s.Assign("m", two(1, 1), "k", always); a != nil || s.Of("m") != nil || s.List() != nil {
		t.Errorf("no splits have %v", a)
	}
	var a *splits.Assignment
	a.Ended(splits.End{})
	if a := stepping().Assign("m", two(0, 0), "k", always); a != nil {
		t.Errorf("sides without weights have %v", a)
	}
}

func TestSettingsNameEachMistake(t *testing.T) {
	c := splits.Config{StepBackSessions: 5, Models: []splits.Split{
		{Model: ""}, {Model: "m", Sides: []splits.Side{{Weight: -1}, {Weight: 0}}}, {Model: "m", Sides: two(1, 1)},
	}}
	err := fmt.Sprint(c.Validate())
	for _, want := range []string{
		"step_back_sessions: must be from 20", "models[0].model: must not be empty", "models[0].sides: must be 1 to 16", "models[1].sides[0].weight", `models[1].sides[1].name: "m" is the name of another`,
		`models[2].model: "m" has a split already`,
	} {
		if !strings.Contains(err, want) {
			t.Errorf("%q is missing in:\n%s", want, err)
		}
	}
	if err := (splits.Config{StepBackSessions: 50, Models: []splits.Split{{Model: "m", Sides: two(9, 1)}}}).Validate(); err != nil {
		t.Error(err)
	}
}
