package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
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
	// unstreamedShare is the part of round-robin's answers that the default policy must reach where no prompts share anything, and the engines share
	// their cores with the router that has them tokenize.
	unstreamedShare = 0.7
)

// answersOf compares the answers of the default policy with round-robin's. A router that guesses the engines' speed and holds requests back for that gives fewer. The
// routers take turns, so that other work on the machine meets both; the first turn of each counts for nothing.
func (r *stack) answersOf(ctx context.Context, stream bool) (string, error) {
	policies := [2]string{"predicted-ttft", "round-robin"}
	var routers [2]*routerProcess
	for i, policy := range policies {
		p, err := r.another(ctx, fmt.Sprintf("load-%v-%s", stream, policy), r.addresses(), "chooser: {policy: "+policy+"}\n")
		if err != nil {
			return "", err
		}
		defer p.stop()
		routers[i] = p
	}
	var answers [2]int64
	for turn := range unstreamedTurns {
		for _, i := range [2]int{turn % 2, 1 - turn%2} {
			n, err := answersWithin(ctx, routers[i], stream)
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

// answersWithin counts a router's answers to clients of which each has one request at a time, no two alike.
func answersWithin(ctx context.Context, router *routerProcess, stream bool) (int64, error) {
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
				err := consume(ctx, router.url()+"/v1/completions", object{"model": "tiny", "prompt": text, "max_tokens": 4, "ignore_eos": true, "stream": stream})
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

// consume reads an answer of either form to its end.
func consume(ctx context.Context, url string, body object) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	resp, err := open(ctx, http.MethodPost, url, raw)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("POST %s: status %d: %.300s", url, resp.StatusCode, b)
	case body["stream"] == true && !bytes.HasSuffix(bytes.TrimSpace(b), []byte("data: [DONE]")):
		return fmt.Errorf("POST %s: a stream without an end: %.300s", url, b)
	}
	return nil
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
