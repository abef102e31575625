package bench

import (
	"context"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// ground is a fleet's true caches and the router's view of its routed prompts, for a choice by the
// longest known prefix.
type ground struct {
	mu     sync.Mutex
	holds  []map[blockhash.Hash]bool // the blocks that each replica truly holds, and its events announced
	routed []map[blockhash.Hash]bool // names of text chunks routed to each without ids
	sent   []int
	cached int
	total  int
}

func newGround(n int) *ground {
	g := &ground{sent: make([]int, n)}
	for range n {
		g.holds = append(g.holds, map[blockhash.Hash]bool{})
		g.routed = append(g.routed, map[blockhash.Hash]bool{})
	}
	return g
}

// route chooses for the request, serves it, and counts the tokens found in the cache.
func (g *ground) route(p *prompt.Prompt, enc *tokenizer.Encoding) {
	names, view := enc.Hashes(benchBlock, blockhash.Namespace{}), g.holds
	if enc.Source == tokenizer.SourceNone {
		names, view = tokenizer.ApproximateHashes(nil, p, benchBlock, blockhash.Namespace{}), g.routed
	}
	truth := blockhash.Chain(nil, fakeIDs(p.Messages, true), benchBlock, blockhash.Namespace{})
	g.mu.Lock()
	defer g.mu.Unlock()
	best, most := 0, -1
	for i := range view {
		n := leading(view[i], names)
		if n > most || n == most && g.sent[i] < g.sent[best] {
			best, most = i, n
		}
	}
	g.sent[best]++
	g.cached += leading(g.holds[best], truth)
	g.total += len(truth)
	for _, h := range truth {
		g.holds[best][h] = true
	}
	if enc.Source == tokenizer.SourceNone {
		for _, h := range names {
			g.routed[best][h] = true
		}
	}
}

func leading(held map[blockhash.Hash]bool, names []blockhash.Hash) int {
	for i, h := range names {
		if !held[h] {
			return i
		}
	}
	return len(names)
}

func (g *ground) share() float64 { return float64(g.cached) / float64(max(1, g.total)) }

// outage holds conversations twice, and kills all tokenizers in the middle of the second time.
func (b tokenizeBench) outage(ctx context.Context, r *tokenizeReport) error {
	for _, down := range []bool{false, true} {
		g, failed, longest, err := b.through(ctx, down)
		if err != nil {
			return err
		}
		if !down {
			r.CachedShareUp = g.share()
			continue
		}
		r.CachedShareDown, r.FailedWhenDown, r.DownStageMax = g.share(), failed, millis(longest)
		r.AffinityLost = 100 * (r.CachedShareUp - r.CachedShareDown)
	}
	return nil
}

// through has half of the clients talk for half of the turns, then kills the tokenizers if
// asked to, and measures the second half, in which the other clients start.
func (b tokenizeBench) through(ctx context.Context, down bool) (g *ground, failed int, longest time.Duration, err error) {
	fleet, err := startFakeFleet(ctx, b.replicas)
	defer fleet.kill()
	if err != nil {
		return nil, 0, 0, err
	}
	pool, stop := runPool(ctx, routerDefaults())
	defer stop()
	g = newGround(b.replicas)
	turns := min(b.turns, 20)
	talks := b.talks(5000)
	var mu sync.Mutex
	half := func(talks []*talk) {
		var wg sync.WaitGroup
		for _, k := range talks {
			wg.Go(func() {
				for range turns / 2 {
					k.turn()
					req, enc, took, err := tokenizeStage(ctx, pool, fleet, k.body())
					mu.Lock()
					longest = max(longest, took)
					if err != nil {
						failed++
						mu.Unlock()
						continue
					}
					mu.Unlock()
					g.route(&req.Prompt, enc)
					enc.Release()
					time.Sleep(b.pause / 4)
				}
			})
		}
		wg.Wait()
	}
	half(talks[:len(talks)/2])
	g.cached, g.total, longest, failed = 0, 0, 0, 0
	if down {
		fleet.kill()
	}
	half(talks)
	return g, failed, longest, nil
}
