package replay

import (
	
	"fmt"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

var dbg func(string, ...any)

func TestZZ(t *testing.T) {
	trace, _ := Generate("fork", 880, 1)
	o := Options{
		Traffic: Traffic{Trace: trace, Rates: []float64{2}}, Engines: Engines{Replicas: 8, Block: 512, Profile: Profiles()[0], Delays: LocalDelays(), Transfers: PublishedTransfers()},
		Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}, Roles: []Roles{{Both: 8}}, Splits: []SplitRule{PullOnly}},
		Runs:  Runs{Seeds: 1, NoSaturation: true},
	}
	debug = func(f string, a ...any) { fmt.Printf(f+"\n", a...) }
	
	r := play(t, o)
	_ = r
}
