package replay

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// tiered plays a conversation-like trace over replicas with small caches.
func tiered(t *testing.T, tiers Tiers) PolicyReport {
	t.Helper()
	trace, err := Generate("conv", 2500, 1)
	if err != nil {
		t.Fatal(err)
	}
	p := Profiles()[0]
	p.CacheTokens = max(trace.longest(), 150_000) / 128 * 128
	o := Options{
		Traffic: Traffic{Trace: trace, Load: 0.7}, Engines: Engines{Replicas: 4, Profile: p, Block: 128, Delays: LocalDelays(), Tiers: tiers},
		Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{Seeds: 1, NoSaturation: true},
	}
	r, err := Play(o)
	if err != nil {
		t.Fatal(err)
	}
	return r.Policies[decision.PredictedTTFT]
}

// Host memory pays, a store pays more, and most of it is lost where the router does not know what lies there.
func TestTiersPayWhereTheRouterKnowsThem(t *testing.T) {
	plays(t)
	size := func(host, store int, unknown bool) Tiers {
		d := DefaultTiers()
		d.Host.Tokens, d.Store.Tokens, d.Unknown = host, store, unknown
		return d
	}
	none := tiered(t, Tiers{})
	host, blind := tiered(t, size(3_000_000, 0, false)), tiered(t, size(3_000_000, 0, true))
	store := tiered(t, size(0, 12_000_000, false))
	t.Logf("hits %.3f without, %.3f with host memory, %.3f when that is not known, %.3f with a store; first tokens %.2f, %.2f, %.2f, %.2f s",
		none.HitRate, host.HitRate, blind.HitRate, store.HitRate, none.Mean, host.Mean, blind.Mean, store.Mean)
	if host.HitRate < none.HitRate+0.05 || host.Mean > 0.9*none.Mean {
		t.Errorf("host memory: hits %.3f and first tokens after %.2f s, without %.3f and %.2f s", host.HitRate, host.Mean, none.HitRate, none.Mean)
	}
	if blind.HitRate > host.HitRate-0.03 || blind.Mean < host.Mean {
		t.Errorf("when the router does not know it: hits %.3f and %.2f s, when it does %.3f and %.2f s", blind.HitRate, blind.Mean, host.HitRate, host.Mean)
	}
	if store.HitRate < host.HitRate || store.Mean > none.Mean {
		t.Errorf("a store: hits %.3f and %.2f s", store.HitRate, store.Mean)
	}
	if q := host.Predicted; q.P50 < 0.9 || q.P50 > 1.1 || q.P10 < 0.7 || q.P90 > 1.4 {
		t.Errorf("predicted over actual times to the first token: %+v", q)
	}
}

// Loads that are slower than computing are learned: requests go where they do not wait for them.
func TestASlowTierCostsLessWhenItIsKnown(t *testing.T) {
	plays(t)
	slow := DefaultTiers()
	slow.Host = Tier{Tokens: 3_000_000, PerToken: 500e-6} // four times as long as computing
	known := tiered(t, slow)
	slow.Unknown = true
	blind := tiered(t, slow)
	t.Logf("first tokens after %.2f s and answers %.2f s, %.2f s and %.2f s when it is not known", known.Mean, known.AnswerMean, blind.Mean, blind.AnswerMean)
	if known.AnswerMean > blind.AnswerMean || known.Mean > blind.Mean {
		t.Errorf("first tokens after %.2f s and %.2f s, answers after %.2f s where the router knows the slow tier, and %.2f s where it does not", known.Mean, blind.Mean, known.AnswerMean, blind.AnswerMean)
	}
}

func TestTiersThatCannotBeAreRefused(t *testing.T) {
	for name, tiers := range map[string]Tiers{
		"smaller than a block": {Host: Tier{Tokens: 100}}, "negative": {Store: Tier{Tokens: -1}}, "a negative time": {Host: Tier{Start: -1}},
	} {
		if tiers.check(128) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if d := DefaultTiers(); d.check(128) != nil {
		t.Errorf("the default: %v", d.check(128))
	}
}
