package speed

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// A trial opens a minute after the last sample, and each one that ends without a new sample doubles the wait for the next.
func TestTrialsThatChangeNothingGetRarer(t *testing.T) {
	taught := time.Unix(100, 0)
	var one trial
	if one.due(time.Time{}, taught) {
		t.Error("a rank without samples is tried")
	}
	now, waits := taught, []time.Duration{}
	for range 7 {
		before := now
		for !one.due(taught, now) {
			now = now.Add(time.Second)
		}
		waits = append(waits, now.Sub(before))
		one.open = true
		if one.due(taught, now) || !one.end(now) || one.end(now) {
			t.Fatal("a trial is open once, and ends once")
		}
	}
	for i, want := range []float64{1, 1, 2, 4, 8, 16, 16} {
		if waits[i].Minutes() != want {
			t.Errorf("wait %d is %v, want %v minutes", i, waits[i], want)
		}
	}
}

// Of the reasons to show something else than the own samples, the trial comes first, then the lag; a distrusted rank has its kind's Model.
func TestWhatIsShownOfARank(t *testing.T) {
	typical, own := prior(), prior()
	typical.Source, typical.Samples = decision.SpeedLearned, 9
	own.Token, own.Samples, own.Spread, own.Source = 4*typical.Token, 5, .1, decision.SpeedLearned
	k := equals{typical: &typical, of: 1}
	for name, test := range map[string]struct {
		trust  trust
		k      equals
		token  float64
		source decision.SpeedSource
	}{
		"own":                       {trust{}, k, own.Token, decision.SpeedLearned},
		"late":                      {trust{lag: 2}, k, 2 * own.Token, decision.SpeedLearned},
		"tried":                     {trust{lag: 2, trial: trial{open: true}}, k, typical.Token, decision.SpeedKind},
		"tried without equals":      {trust{trial: trial{open: true}}, equals{}, own.Token, decision.SpeedLearned},
		"distrusted":                {trust{watch: watch{distrusted: true}}, k, typical.Token, decision.SpeedDistrusted},
		"distrusted without equals": {trust{watch: watch{distrusted: true}}, equals{}, own.Token, decision.SpeedLearned},
	} {
		m := test.trust.shown(test.trust.fitted(own, test.k), test.k)
		if m.Token != test.token || m.Source != test.source || m.Samples != own.Samples {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// A lag grows while work is late, stays while samples are as late, and is over without either.
func TestALagStaysWhileSamplesAreLate(t *testing.T) {
	slower, none := &drift{run: 1, slower: true}, &drift{}
	for name, test := range map[string]struct {
		lag, late float64
		drift     *drift
		want      float64
	}{
		"none":            {1, 0, none, 1},
		"a little late":   {1, offBy, none, 1},
		"late":            {1, 5, none, 5},
		"later":           {5, 7, slower, 7},
		"samples are":     {5, 0, slower, 5},
		"over":            {5, 0, none, 1},
		"not so late now": {5, 3, none, 3},
	} {
		if got := (&trust{lag: test.lag}).lagging(test.late, test.drift); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
