package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// checkLeavers: clients leave at any moment of a split request, and nothing stays booked or pinned.
func (s *splits) checkLeavers(ctx context.Context) (string, error) {
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, leave := context.WithTimeout(ctx, time.Duration(20+i*20)*time.Millisecond)
			defer leave()
			r := &shared{path: "/v1/completions", body: object{"model": "tiny", "prompt": s.prompt(5000+i, 500), "max_tokens": 200, "ignore_eos": true}}
			_, _ = s.ask(ctx, s.router.url(), r, i%4 < 2, nil) // it is to fail
		})
		time.Sleep(20 * time.Millisecond)
	}
	wg.Wait()
	left, err := s.router.counter(ctx, "kvpilot_router_transfers_total", `result="left"`)
	if err != nil {
		return "", err
	}
	took, err := s.unpinned(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	for {
		n, err := s.router.inFlight(ctx)
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
		if time.Since(began) > longestLease {
			return "", fmt.Errorf("%d reservations are left", n)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return fmt.Sprintf("40 clients, %v left during a transfer; nothing pinned after %.1f s, nothing booked after %.1f s more", left, took.Seconds(), time.Since(began).Seconds()), nil
}

// longestAnswer is the time within which each request has to end while an engine dies.
const longestAnswer = 60 * time.Second

// checkHang stops the processes of an engine while requests are split, and lets them run on later.
func (s *splits) checkHang(ctx context.Context, victim int) (string, error) {
	list, err := s.makeAll(ctx, 9000+500*victim, 60, 300, 40)
	if err != nil {
		return "", err
	}
	e := s.engines[victim]
	defer e.process.Signal(syscall.SIGCONT)
	out := s.all(ctx, list, 10, func(n int) {
		if n == 20 {
			e.process.Signal(syscall.SIGSTOP)
		}
	})
	e.process.Signal(syscall.SIGCONT)
	whole, err := out.judge(list)
	if err != nil {
		return "", err
	}
	if most := out.slowest(); most > longestAnswer {
		return "", fmt.Errorf("an answer took %s", most)
	}
	if err := s.router.waitExact(ctx, len(s.engines), time.Minute); err != nil {
		return "", err
	}
	detail := fmt.Sprintf("%d requests, none lost, every text right, %d served whole, the slowest in %.1f s", len(list), whole, out.slowest().Seconds())
	returned, err := s.returned(ctx)
	return detail + returned, err
}

// returned describes the end of all pins after a failure. Of legs that were aborted while they waited for a cache vLLM keeps the blocks, with nixl-push
// until it restarts, with Mooncake for up to ten minutes: those are no failure.
func (s *splits) returned(ctx context.Context) (string, error) {
	took, err := s.unpinned(ctx)
	switch {
	case err == nil:
		return fmt.Sprintf("; nothing pinned after %.1f s", took.Seconds()), nil
	case s.connector == "nixl-push", s.connector == mooncake:
		return "; " + err.Error(), nil
	}
	return "", err
}

// lead has the engine compute a prompt for another one, and returns the request of the other one.
func (s *splits) lead(ctx context.Context, e *engine, n int, id string) (object, error) {
	body := object{
		"model": "tiny", "prompt": s.prompt(n, 300), "max_tokens": 1, "ignore_eos": true, "temperature": 0,
		"kv_transfer_params": object{"do_remote_decode": true, "do_remote_prefill": false},
	}
	if s.connector == mooncake {
		body["kv_transfer_params"].(object)["transfer_id"] = id
	}
	a, err := post(ctx, e.url()+"/v1/completions", body, "X-Request-Id", id)
	if err != nil {
		return nil, err
	}
	if s.connector == mooncake {
		body["kv_transfer_params"], err = e.meeting(ctx, id)
	} else if body["kv_transfer_params"] = a.at("kv_transfer_params"); body["kv_transfer_params"] == nil {
		err = fmt.Errorf("%s passes nothing on: %s", e.id, a.raw)
	}
	body["max_tokens"] = 8
	return body, err
}

// meeting are the parameters by which another engine reads the cache of a transfer of this one, with Mooncake.
func (e *engine) meeting(ctx context.Context, transfer string) (object, error) {
	at := fmt.Sprintf("http://127.0.0.1:%d", e.bootstrap())
	code, text, err := call(ctx, http.MethodGet, at+"/query", nil)
	if err != nil {
		return nil, err
	}
	var ranks map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if err := json.Unmarshal(text, &ranks); code != http.StatusOK || err != nil || ranks["0"].EngineID == "" {
		return nil, fmt.Errorf("%s/query: %d %.200s", at, code, text)
	}
	return object{"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": transfer, "remote_bootstrap_addr": at, "remote_engine_id": ranks["0"].EngineID}, nil
}

// between asks the engine that decodes, without the router, for an answer from the cache of an engine that has died: what the router has
// to expect of it.
func (s *splits) between(ctx context.Context, body object, id string) (string, error) {
	const patience = 15 * time.Second
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	began := time.Now()
	code, text, err := call(limited, http.MethodPost, s.engines[1].url()+"/v1/completions", raw, "X-Request-Id", id)
	switch {
	case err == nil && code == http.StatusOK:
		return "", fmt.Errorf("an answer from the cache of a dead engine: %.200s", text)
	case err == nil:
		return fmt.Sprintf("%d after %.1f s", code, time.Since(began).Seconds()), nil
	case limited.Err() != nil && ctx.Err() == nil:
		return fmt.Sprintf("no answer within %s", patience), nil
	}
	return "", err
}

// checkKill kills an engine while requests are split.
func (s *splits) checkKill(ctx context.Context, victim int) (string, error) {
	list, err := s.makeAll(ctx, 6000+1000*victim, 100, 300, 60)
	if err != nil {
		return "", err
	}
	e := s.engines[victim]
	var orphan object
	if victim == 0 {
		if orphan, err = s.lead(ctx, e, 6900, "orphan"); err != nil {
			return "", err
		}
	}
	out := s.all(ctx, list, 10, func(n int) {
		if n == 40 {
			e.kill()
		}
	})
	whole, err := out.judge(list)
	if err != nil {
		return "", err
	}
	if most := out.slowest(); most > longestAnswer {
		return "", fmt.Errorf("an answer took %s", most)
	}
	results := ""
	if orphan != nil {
		if results, err = s.between(ctx, orphan, "orphan"); err != nil {
			return "", err
		}
		results = "; the other engine, asked for a dead one's cache: " + results
	}
	results += "; all so far:"
	for _, name := range []string{"kvpilot_router_prefills_total", "kvpilot_router_transfers_total", "kvpilot_router_resumes_total"} {
		_, text, err := call(ctx, http.MethodGet, "http://"+s.router.admin+"/metrics", nil)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, name) && !strings.HasSuffix(line, " 0\n") {
				results += " " + strings.TrimSpace(strings.TrimPrefix(line, "kvpilot_router_"))
			}
		}
	}
	returned, err := s.returned(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := e.start(ctx); err != nil {
		return "", err
	}
	if err := e.wait(ctx, startWait); err != nil {
		return "", err
	}
	if err := s.remember(); err != nil {
		return "", err
	}
	if err := s.router.waitExact(ctx, len(s.engines), time.Minute); err != nil {
		return "", err
	}
	back := time.Since(began)
	again, err := s.makeAll(ctx, 8000+1000*victim, 10, 300, 16)
	if err != nil {
		return "", err
	}
	after := s.all(ctx, again, 2, nil)
	if _, err := after.judge(again); err != nil {
		return "", fmt.Errorf("after the return: %w", err)
	}
	used := false
	for i := range after.got {
		used = used || after.got[i].prefill == e.id || after.got[i].replica == e.id && after.got[i].prefill != ""
	}
	if !used {
		return "", fmt.Errorf("%s is not used in pairs after its return", e.id)
	}
	return fmt.Sprintf("%d requests, none lost, every text right, %d served whole, the slowest in %.1f s%s; back after %.0f s and used in pairs%s",
		len(list), whole, out.slowest().Seconds(), returned, back.Seconds(), results), nil
}
