package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// The load of checkCopy, in words: long prompts keep the engine that answers busy while the branches of one prefix wait for it.
const (
	copiedWords  = 1200
	branchWords  = 60
	copyBranches = 12
	copyFillers  = 8
)

// checkCopy: a prefix that one engine holds is copied to another one for requests that wait there. They and a later request find it, with the
// text of one engine.
func (s *splits) checkCopy(ctx context.Context) (string, error) {
	if s.letters == nil {
		var err error
		if s.letters, err = s.fleet.letters(ctx); err != nil {
			return "", err
		}
	}
	var tried []string
	for round := range 5 { // the engines may be faster than the branches come
		detail, copied, err := s.copyRound(ctx, 6000+100*round)
		if err != nil || copied {
			return detail, err
		}
		tried = append(tried, detail)
	}
	return "", fmt.Errorf("nothing was copied: %v", tried)
}

// branch is a request that begins with a prefix.
func (s *splits) branch(prefix string, n int) *shared {
	own := words(rand.New(rand.NewPCG(uint64(n), uint64(s.nonce))), branchWords)
	r := &shared{path: "/v1/completions", body: object{"prompt": prefix + fmt.Sprintf(" and branch %d: ", n) + own}}
	maps.Copy(r.body, object{"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": true, "repetition_penalty": 1.3, "allowed_token_ids": s.letters,
		"tool_choice": "required", // engines ignore it in a completion; the router does not split such a request
	})
	return r
}

// copyRound has one engine hold a prefix, and many requests with it wait for the others.
func (s *splits) copyRound(ctx context.Context, n int) (detail string, copied bool, err error) {
	prefix := s.prompt(n, copiedWords)
	list := make([]*shared, copyBranches+1)
	for i := range list {
		list[i] = s.branch(prefix, n+i)
		alone, err := s.ask(ctx, s.engines[0].url(), list[i], false, object{"cache_salt": "alone"})
		if err != nil {
			return "", false, err
		}
		list[i].want = alone.text
	}
	// Without the router, so that the engine alone has it that prefills, to which no request goes whole.
	if _, err := s.ask(ctx, s.engines[0].url(), &shared{path: "/v1/completions", body: object{"model": "tiny", "prompt": prefix, "max_tokens": 1}}, false, nil); err != nil {
		return "", false, err
	}
	time.Sleep(200 * time.Millisecond) // its events are under way
	before, err := s.copyCounts(ctx)
	if err != nil {
		return "", false, err
	}
	load := make([]*shared, 0, copyFillers+copyBranches)
	for i := range copyFillers {
		load = append(load, &shared{path: "/v1/completions", body: object{"model": "tiny", "prompt": s.prompt(n+1000+i, copiedWords), "max_tokens": 1, "temperature": 0}})
	}
	load = append(load, list[:copyBranches]...)
	id := fmt.Sprintf("copy-%d-%d", s.nonce, n)
	out := s.inOrder(ctx, load, id)
	hits := 0
	for i, r := range load {
		if a := &out.got[i]; out.failed[i] != nil {
			return "", false, fmt.Errorf("request %d: %w", i, out.failed[i])
		} else if i >= copyFillers && a.text != r.want {
			return "", false, fmt.Errorf("branch %d at %s: %q, want %q", i-copyFillers, a.replica, a.text, r.want)
		}
	}
	waited := 0
	for i := copyFillers; i < len(load); i++ {
		d, err := s.router.ended(ctx, fmt.Sprintf("%s-%d", id, i))
		if err != nil {
			return "", false, err
		}
		for _, w := range d.GetWays() {
			if w.GetKind() == "copy" {
				waited++
				break
			}
		}
		if a := &out.got[i]; a.cached > 0 {
			hits++
			// Where two branches share a block more, the later choice may be computed first.
			if predicted, found := int(d.GetOutcome().GetPredictedCachedTokens()), s.found(a, d); waited > 0 && found != predicted && found != predicted+blockSize {
				return "", false, fmt.Errorf("branch %d of %d tokens at %s, prefilled at %q, has %d cached tokens, predicted were %d", i-copyFillers, a.prompt, a.replica, a.prefill, a.cached, predicted)
			}
		}
	}
	after, err := s.copyCounts(ctx)
	if err != nil {
		return "", false, err
	}
	now := map[string]float64{}
	for result, v := range after {
		if v > before[result] {
			now[result] = v - before[result]
		}
	}
	detail = fmt.Sprintf("copies %v, %d of %d branches waited for one, %d found the prefix", now, waited, copyBranches, hits)
	if now["done"] == 0 || waited == 0 {
		return detail, false, nil
	}
	if len(now) > 1 || hits < waited {
		return "", false, fmt.Errorf("%s", detail)
	}
	found, err := s.foundLater(ctx, list[copyBranches], id+"-later")
	if err != nil {
		return "", false, fmt.Errorf("%s; %w", detail, err)
	}
	return detail + "; " + found, true, nil
}

// foundLater sends a later request with the prefix, which finds it.
func (s *splits) foundLater(ctx context.Context, later *shared, id string) (string, error) {
	a, err := s.ask(ctx, s.router.url(), later, true, nil, "X-Request-Id", id)
	if err != nil {
		return "", err
	}
	predicted, err := s.router.predicted(ctx, id)
	if err != nil {
		return "", err
	}
	if a.text != later.want || a.cached != predicted || a.cached < copiedWords/2 {
		return "", fmt.Errorf("a later request at %s has %d cached tokens, predicted %d, and the text %q, want %q: %w", a.replica, a.cached, predicted, a.text, later.want, errNotFound)
	}
	took, err := s.unpinned(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("a later request found %d tokens, as predicted; every text as of one engine; nothing pinned after %.1f s", a.cached, took.Seconds()), nil
}

// errNotFound is why a later request shows no copy.
var errNotFound = errors.New("the copy was not found")

// inOrder sends requests one shortly after the other, each under an id of its own, and waits for all answers.
func (s *splits) inOrder(ctx context.Context, list []*shared, id string) *outcomes {
	o := &outcomes{got: make([]answered, len(list)), failed: make([]error, len(list))}
	var wg sync.WaitGroup
	for i, r := range list {
		wg.Go(func() {
			o.got[i], o.failed[i] = s.ask(ctx, s.router.url(), r, true, nil, "X-Request-Id", fmt.Sprintf("%s-%d", id, i))
		})
		time.Sleep(2 * time.Millisecond)
	}
	wg.Wait()
	return o
}

// copyCounts are the router's copies so far, by result.
func (s *splits) copyCounts(ctx context.Context) (map[string]float64, error) {
	out := map[string]float64{}
	for _, result := range []string{"done", "missing", "source", "no_cache", "mismatch", "target", "late"} {
		v, err := s.router.counter(ctx, "kvpilot_router_copies_total", `result="`+result+`"`)
		if err != nil {
			return nil, err
		}
		out[result] = v
	}
	return out, nil
}
