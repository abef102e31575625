package router_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// A policy that reads no cache must not pay for hashes and beliefs, unless another one reads what it leaves behind.
func TestOnlyPoliciesThatReadTheCacheWriteBeliefs(t *testing.T) {
	for name, tc := range map[string]struct {
		serving, shadow, asked decision.Policy
		believes               bool
	}{
		"round-robin":                         {serving: decision.RoundRobin},
		"least-requests":                      {serving: decision.LeastRequests},
		"the request asks for one that reads": {serving: decision.RoundRobin, asked: decision.PredictedTTFT, believes: true},
		"the shadow reads":                    {serving: decision.RoundRobin, shadow: decision.PredictedTTFT, believes: true},
		"predicted-ttft":                      {serving: decision.PredictedTTFT, believes: true},
		"later requests read":                 {serving: decision.PredictedTTFT, asked: decision.RoundRobin, believes: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, func(_ *router.Params, c *chooser.Config, _ *registry.Config) {
				c.Policy, c.Shadow = tc.serving, tc.shadow
			})
			f.engines[0].tokenizes(text(200, `{"count":2000,"max_model_len":4096,"tokens":[`+strings.Repeat("5,", 1999)+`5]}`))
			call := chat(`{"model":"m","prompt":"` + strings.Repeat("a long text ", 400) + `"}`)
			call.Route, call.Options.Policy = openai.RouteCompletions, tc.asked
			must(t, f.router.Serve(t.Context(), call, &client{}))
			f.settled()
			guessed := 0
			for _, r := range f.index.Stats().Ranks {
				guessed += r.Guessed
			}
			if (guessed > 0) != tc.believes {
				t.Errorf("%d blocks are believed to be held; want some: %v", guessed, tc.believes)
			}
		})
	}
}

// An overlap that nobody looked up is no proof that the replica lacks the prompt: the guard of the tokenization must not
// expect its blocks.
func TestAnOverlapThatWasNotLookedUpExpectsNoBlocks(t *testing.T) {
	for policy, expects := range map[decision.Policy]bool{decision.RoundRobin: false, decision.PredictedTTFT: true} {
		t.Run(string(policy), func(t *testing.T) {
			f := start(t, 1, func(_ *router.Params, c *chooser.Config, _ *registry.Config) { c.Policy = policy })
			slot := f.params.Registry.Snapshot().Replicas[0].Slots[0]
			f.index.SetState(slot, kvblock.FeedExact)
			prompt := slices.Repeat([]uint32{5}, 16)
			call := chat(`{"model":"m","prompt":[` + strings.Repeat("5,", 31) + `5]}`)
			call.Route = openai.RouteCompletions
			must(t, f.router.Serve(t.Context(), call, &client{}))
			f.settled()
			f.params.Tokens.ObserveStored("m", slot, &kvblock.Stored{Tokens: prompt, BlockSize: 16, Tier: kvblock.TierGPU})
			equal := 0
			for _, p := range f.params.Tokens.Parity() {
				equal += int(p.BlocksEqual)
			}
			if (equal > 0) != expects {
				t.Errorf("%d expected blocks were seen; want some: %v", equal, expects)
			}
		})
	}
}

// A request that no engine computed leaves no block to be expected: its tenant cannot have the tokenization of all others doubted.
func TestARequestThatEndsEarlyExpectsNoBlocks(t *testing.T) {
	f := start(t, 1, nil)
	slot := f.params.Registry.Snapshot().Replicas[0].Slots[0]
	f.index.SetState(slot, kvblock.FeedExact)
	f.script(text(400, `{"error":{"message":"no"}}`))
	prompt := slices.Repeat([]uint32{5}, 16)
	call := chat(`{"model":"m","prompt":[` + strings.Repeat("5,", 31) + `5]}`)
	call.Route = openai.RouteCompletions
	if err := f.router.Serve(t.Context(), call, &client{}); err == nil {
		t.Fatal("the engine's refusal is lost")
	}
	f.settled()
	f.params.Tokens.ObserveStored("m", slot, &kvblock.Stored{Tokens: prompt, BlockSize: 16, Tier: kvblock.TierGPU})
	for _, p := range f.params.Tokens.Parity() {
		if p.BlocksEqual != 0 {
			t.Errorf("%d blocks of a refused request were expected", p.BlocksEqual)
		}
	}
}
