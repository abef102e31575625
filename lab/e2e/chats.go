package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/internal/loadgen"
)

// The bounds of checkChats for predicted over actual time to the first token, and for the most prefill that a replica did over the mean.
const (
	chatsP50Low, chatsP50High = 0.9, 1.1
	chatsP90Low, chatsP90High = 0.6, 1.6
	chatsImbalance            = 1.2
)

// checkChats plays 64 multi-turn chats, 8 at a time, with pauses between turns: predictions must be right in the middle and at the tail, and
// the replicas must share the prefill.
func (r *disturbances) checkChats(ctx context.Context) (string, error) {
	load := loadgen.Config{
		URL: r.router.url(), Model: "tiny", Conversations: 16, Turns: 4, Concurrency: 8, Tenants: 1, Think: time.Second,
		SystemWords: 150, UserWords: 200, MaxTokens: 16, Seed: uint64(time.Now().UnixNano()), Timeout: 2 * time.Minute,
	}
	var s loadgen.Summary
	if err := loadgen.Run(ctx, load, s.Add); err != nil { // the router learns from it
		return "", err
	}
	seen := r.router.watchPredictions(ctx)
	computed := map[string]int{}
	load.Conversations = 64
	load.Seed++
	if err := loadgen.Run(ctx, load, func(res loadgen.Result) {
		s.Add(res)
		computed[res.Replica] += res.PromptTokens - res.CachedTokens
	}); err != nil {
		return "", err
	}
	ratios := seen()
	if s.Failed > 0 {
		return "", fmt.Errorf("%d of %d requests failed, first: %w", s.Failed, s.Requests, s.FirstError)
	}
	if want := load.Requests() * 9 / 10; len(ratios) < want {
		return "", fmt.Errorf("%d predictions were seen, want at least %d", len(ratios), want)
	}
	most, all := 0, 0
	for _, n := range computed {
		most, all = max(most, n), all+n
	}
	imbalance := float64(most*len(r.engines)) / float64(max(1, all))
	slices.Sort(ratios)
	at := func(q float64) float64 { return ratios[int(q*float64(len(ratios)-1))] }
	p10, p50, p90 := at(0.1), at(0.5), at(0.9)
	detail := fmt.Sprintf("%d turns: predicted / actual first token p10 %.2f, p50 %.2f, p90 %.2f; imbalance of the prefill %.2f, %.0f %% cached", len(ratios), p10, p50, p90, imbalance, 100*s.CachedShare())
	if p50 < chatsP50Low || p50 > chatsP50High || p90 < chatsP90Low || p90 > chatsP90High || imbalance > chatsImbalance {
		return "", fmt.Errorf("%s; want p50 %.1f to %.1f, p90 %.1f to %.1f, imbalance at most %.1f", detail, chatsP50Low, chatsP50High, chatsP90Low, chatsP90High, chatsImbalance)
	}
	return detail, nil
}

// watchPredictions collects predicted over actual times to the first token, of all requests that end until it is asked for them.
func (p *routerProcess) watchPredictions(ctx context.Context) func() []float64 {
	ctx, cancel := context.WithCancel(ctx)
	var ratios []float64
	over := make(chan struct{})
	go func() {
		defer close(over)
		for msg, err := range p.api.WatchDecisions(ctx, "") {
			if err != nil {
				return
			}
			if o := msg.GetDecision().GetOutcome(); o.GetTtft().AsDuration() > 0 && o.GetPredictedTtft().AsDuration() > 0 {
				ratios = append(ratios, o.GetPredictedTtft().AsDuration().Seconds()/o.GetTtft().AsDuration().Seconds())
			}
		}
	}()
	return func() []float64 {
		time.Sleep(time.Second) // the last outcomes are under way
		cancel()
		<-over
		return ratios
	}
}
