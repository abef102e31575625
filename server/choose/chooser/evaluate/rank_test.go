package evaluate

import (
	"math"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// pointed is a clock that a test sets.
type pointed time.Time

func (p *pointed) Now() time.Time { return time.Time(*p) }

// What was routed to a rank is counted per second of the last minute, and fades.
func TestARankKnowsWhoReturnedLately(t *testing.T) {
	now := time.Unix(1000, 0)
	book := load.New(load.DefaultConfig(), load.Params{Scope: scope.Scope{}.At((*pointed)(&now))})
	scale := clock.New(book.Clock())
	ranks := rank.NewTable(scale)
	ranks.AddRank(0, &replica.Replica{ID: "r"}, 0)
	book.AddRank(0)
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	rk := ranks.At(0)
	rk.Route(6, 0, scale.Since(now))     // a cold prompt
	rk.Route(1, 3, scale.Since(now))     // one who returned and was spared 3 s
	rk.Route(1, 1, scale.Since(now))     // and another
	rk.Route(0, 0.001, scale.Since(now)) // the first block of a system prompt is no return
	s := new(readings)
	read := func() *reading {
		return s.reading(&gauge{views: book.ViewAll(now), now: scale.Since(now)}, 0, rk)
	}
	check := func(left float64) {
		t.Helper()
		at := read()
		near("busy", at.busy, left*8/60)
		near("returns", at.Returns, left*2/60)
		near("saved", at.Saved, 4.001/2)
		near("residual", at.Residual, left*(36+1+1)/2/60)
	}
	check(1)
	now = now.Add(time.Minute)
	check(math.Exp(-1))

	// A visit reads a rank once, until it is told to forget.
	s.Visit = 7
	check(math.Exp(-1))
	rk.Route(6, 0, scale.Since(now))
	check(math.Exp(-1))
	s.Forget(0)
	if at := read(); at.busy <= 0.1 {
		t.Errorf("busy is %v after what was routed was forgotten", at.busy)
	}
}
