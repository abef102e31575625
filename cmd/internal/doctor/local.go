package doctor

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
)

// Params is the input of Local.
type Params struct {
	// Source is where the router's settings come from.
	Source config.Source
	// NoSend sends no request to replicas.
	NoSend bool
	// Limit bounds each check.
	Limit time.Duration

	machine machine // this one, unless a test says another
}

// Local tests the set-up that settings describe, from this machine. It returns when all checks have ended.
func Local(ctx context.Context, p Params) []Result {
	if p.machine == nil {
		p.machine = thisMachine{}
	}
	s := newSetup(p)
	defer s.close()
	return examine(ctx, s, localChecks(), p.Limit)
}

func localChecks() []check {
	return []check{
		{name: "settings", what: "Are the settings valid, can all files that they name be read, and by no other users?", run: checkSettings},
		{name: "limits", what: "Does the machine give the router files, memory, processors and ports enough?", needs: []string{"settings"}, run: checkLimits},
		{name: "listen", what: "Can the router open its own addresses?", needs: []string{"settings"}, run: checkListen},
		{name: "peers", what: "Can the other routers of the fleet be reached?", needs: []string{"settings"}, run: checkPeers},
		{name: "traces", what: "Can the trace collector be reached?", needs: []string{"settings"}, run: checkTraces},
		{name: "issuer", what: "Can the keys of the tokens' issuer be read?", needs: []string{"settings"}, run: checkIssuer},
		{name: "replicas", what: "Do the sources list replicas, and may they be read?", needs: []string{"settings"}, run: checkReplicas},
		{name: "network", what: "Do names resolve, and do connections to the replicas open?", needs: []string{"replicas"}, run: checkNetwork},
		{name: "tls", what: "Are the replicas' certificates trusted, for the right name, and valid for some time?", needs: []string{"network"}, run: checkTLS},
		{name: "health", what: "Are the engines healthy?", needs: []string{"tls"}, run: checkHealth},
		{name: "key", what: "Do the replicas accept the router's API key?", needs: []string{"health"}, run: checkKey},
		{name: "version", what: "Are the versions of vLLM tested ones, and equal in a pool?", needs: []string{"key"}, run: checkVersion},
		{name: "models", what: "Do the replicas of a pool serve the same names, adapters and context length?", needs: []string{"key"}, run: checkModels},
		{name: "metrics", what: "Do the engines' metrics say what the router needs, and is prefix caching on?", needs: []string{"health"}, run: checkMetrics},
		{name: "ranks", what: "Is the number of data-parallel ranks the engines' own?", needs: []string{"metrics"}, run: checkRanks},
		{name: "tokenize", what: "Do the replicas turn prompts into token ids and back?", needs: []string{"models", "version"}, run: checkTokenize},
		{name: "parity", what: "Do all replicas of a pool turn the same prompt into the same ids?", needs: []string{"tokenize"}, run: checkParity},
		{name: "events", what: "Can the KV events of every rank be subscribed to?", needs: []string{"key", "ranks"}, run: checkEvents},
		{name: "replay", what: "Do replays answer, without gaps?", needs: []string{"events"}, run: checkReplay},
		{name: "blocks", what: "Are the blocks of a new prompt published as the router predicts them?", needs: []string{"replay", "tokenize"}, run: checkBlocks},
		{name: "tiers", what: "Which replicas keep KV cache below the GPU, and do their events name it?", needs: []string{"metrics", "events"}, after: []string{"blocks"}, run: checkTiers},
		{name: "directory", what: "Does the directory of caches below the GPU answer in time, about blocks as the pool has them?", needs: []string{"models", "metrics"}, run: checkDirectory},
		{name: "transfer", what: "Can replicas with a KV connector answer from each other's caches?", needs: []string{"metrics", "version"}, run: checkTransfer},
		{name: "clocks", what: "Do the clocks of replicas and router agree?", needs: []string{"health"}, after: []string{"blocks"}, run: checkClocks},
	}
}
