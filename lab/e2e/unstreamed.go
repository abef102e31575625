package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	unstreamedClients = 24
	unstreamedFor     = 5 * time.Second
	unstreamedTurns   = 7
	// unstreamedShare is the part of round-robin's answers that the default policy must reach where no prompts share anything.
	unstreamedShare = 0.75
)

// checkUnstreamed asks many clients at a time for answers in one piece, of which no first token can be seen. A router that guesses the engines' speed and
// holds requests back for that gives fewer answers than round-robin. The routers take turns, so that other work on the machine meets both; the first turn of
// each counts for nothing.
func (r *disturbances) checkUnstreamed(ctx context.Context) (string, error) {
	policies := [2]string{"predicted-ttft", "round-robin"}
	var routers [2]*routerProcess
	for i, policy := range policies {
		p, err := r.another(ctx, "unstreamed-"+policy, r.addresses(), "chooser: {policy: "+policy+"}\n")
		if err != nil {
			return "", err
		}
		defer p.stop()
		routers[i] = p
	}
	var answers [2]int64
	for turn := range unstreamedTurns {
		for _, i := range [2]int{turn % 2, 1 - turn%2} {
			n, err := unstreamedAnswers(ctx, routers[i])
			if err != nil {
				return "", fmt.Errorf("%s: %w", policies[i], err)
			}
			if turn > 0 {
				answers[i] += n
			}
		}
	}
	source, err := routers[0].speedSource(ctx)
	if err != nil {
		return "", err
	}
	detail := fmt.Sprintf("%d clients, %d turns of %v: %d answers, round-robin %d; speed from %s", unstreamedClients, unstreamedTurns-1, unstreamedFor, answers[0], answers[1], source)
	if float64(answers[0]) < unstreamedShare*float64(answers[1]) {
		return "", fmt.Errorf("%s; want %.0f %%", detail, 100*unstreamedShare)
	}
	if source == "prior" && r.atLeast(13) {
		return "", fmt.Errorf("%s: the engines' counters taught nothing", detail)
	}
	return detail, nil
}

// addresses are the engines' addresses.
func (f *fleet) addresses() (list []string) {
	for _, e := range f.engines {
		list = append(list, strings.TrimPrefix(e.url(), "http://"))
	}
	return list
}

// unstreamedAnswers counts a router's answers to clients of which each has one request at a time, no two alike.
func unstreamedAnswers(ctx context.Context, router *routerProcess) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, unstreamedFor)
	defer cancel()
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range unstreamedClients {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
			for ctx.Err() == nil {
				text := strconv.Itoa(dice.IntN(1e9)) + " " + words(dice, 600)
				_, err := post(ctx, router.url()+"/v1/completions", object{"model": "tiny", "prompt": text, "max_tokens": 4, "ignore_eos": true})
				switch {
				case err == nil:
					n.Add(1)
				case ctx.Err() == nil:
					failed.Store(&err)
					return
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return n.Load(), nil
}

// speedSource is where the router's knowledge of the engines' speed comes from.
func (p *routerProcess) speedSource(ctx context.Context) (string, error) {
	_, text, err := call(ctx, "GET", "http://"+p.admin+"/metrics", nil)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "kvpilot_chooser_prefill_rate_uncertainty_ratio{") {
			if _, rest, ok := strings.Cut(line, `source="`); ok {
				source, _, _ := strings.Cut(rest, `"`)
				return source, nil
			}
		}
	}
	return "", errors.New("the router has no metric of its engines' speed")
}
