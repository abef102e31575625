package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// checks runs all of them, the disturbing ones last.
func (r *run) checks(ctx context.Context) {
	if r.tests != "" {
		r.checkFor(ctx, time.Hour, "vLLM's own tests", r.checkOwnTests)
		return
	}
	r.check(ctx, "token ids", r.checkTokens)
	r.check(ctx, "block keys and predicted hits", r.checkBlocks)
	r.check(ctx, "conversation returns", r.checkConversation)
	r.check(ctx, "predicted cached tokens", r.checkPredictions)
	r.check(ctx, "other formats", r.checkFormats)
	r.check(ctx, "stream bytes", r.checkStreams)
	r.check(ctx, "ids in the body", r.checkGivenIDs)
	r.check(ctx, "LoRA adapter", r.checkAdapter)
	r.check(ctx, "adapters at run time", r.checkRuntimeAdapter)
	r.check(ctx, "Cohere's format", r.checkCohere)
	r.check(ctx, "realtime", r.checkRealtime)
	r.check(ctx, "cache salt", r.checkSalt)
	r.check(ctx, "traces", r.checkTraces)
	r.check(ctx, "abort", r.checkAbort)
	r.check(ctx, "reset of the prefix cache", r.checkReset)
	r.check(ctx, "resumed streams", r.checkResume)
	r.check(ctx, "paused replicas", r.checkPause)
	r.check(ctx, "stop strings", r.checkStops)
	r.check(ctx, "32 clients", r.checkLoad)
	r.check(ctx, "drains that move", r.checkMoves)
	r.check(ctx, "64 chats", r.checkChats)
	r.check(ctx, "unstreamed load", r.checkUnstreamed)
	r.check(ctx, "kill -9 under load", r.checkKill)
	r.checkFor(ctx, 2*time.Hour, "a hundred streams killed", r.checkKills)
}

// checkAbort: a client that leaves frees the engine and the reservation.
func (r *run) checkAbort(ctx context.Context) (string, error) {
	inner, leave := context.WithCancel(ctx)
	defer leave()
	raw, err := json.Marshal(object{"model": "tiny", "prompt": "continue", "max_tokens": 3000, "ignore_eos": true, "stream": true})
	if err != nil {
		return "", err
	}
	resp, err := open(inner, "POST", r.router.url()+"/v1/completions", raw)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 64)); err != nil {
		return "", err
	}
	began := time.Now()
	leave()
	booked, running := time.Duration(0), time.Duration(0)
	for end := began.Add(10 * time.Second); time.Now().Before(end) && (booked == 0 || running == 0); time.Sleep(5 * time.Millisecond) {
		if booked == 0 {
			n, err := r.inFlight(ctx)
			if err != nil {
				return "", err
			}
			if n == 0 {
				booked = time.Since(began)
			}
		}
		if running == 0 && r.engineLoad(ctx) == 0 {
			running = time.Since(began)
		}
	}
	if booked == 0 || running == 0 {
		return "", fmt.Errorf("10 s after the client left: reservation released %v, engine idle %v", booked > 0, running > 0)
	}
	return fmt.Sprintf("reservation released after %d ms, engine idle after %d ms", booked.Milliseconds(), running.Milliseconds()), nil
}

// inFlight counts the router's reservations.
func (r *run) inFlight(ctx context.Context) (int, error) {
	resp, err := r.router.api.Routing().GetLoads(ctx, &kvpilotv1.GetLoadsRequest{})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, rank := range resp.GetRanks() {
		n += int(rank.GetRequests())
	}
	return n, nil
}

// released waits until no reservation is left: a client has the last byte of its answer before the router has the end of it.
func (r *run) released(ctx context.Context) error {
	const most = 5 * time.Second
	for end := time.Now().Add(most); ; {
		n, err := r.inFlight(ctx)
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d reservations are left after %s", n, most)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// engineLoad sums what the engines say is running; an engine that does not answer counts as busy.
func (r *run) engineLoad(ctx context.Context) int {
	sum := 0
	for _, e := range r.fleet {
		_, text, err := call(ctx, "GET", e.url()+"/metrics", nil)
		if err != nil {
			return -1
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "vllm:num_requests_running{") || strings.HasPrefix(line, "vllm:num_requests_waiting{") {
				f := strings.Fields(line)
				v, err := strconv.ParseFloat(f[len(f)-1], 64)
				if err == nil {
					sum += int(v)
				}
			}
		}
	}
	return sum
}

// checkTraces: one trace holds the router's spans and the engine's.
func (r *run) checkTraces(ctx context.Context) (string, error) {
	if r.sim {
		return "", fmt.Errorf("the simulator exports no spans: %w", errSkip)
	}
	trace := fmt.Sprintf("%032x", time.Now().UnixNano())
	parent := "00-" + trace + "-00f067aa0ba902b7-01"
	if _, err := post(ctx, r.router.url()+"/v1/completions", object{"model": "tiny", "prompt": "trace me", "max_tokens": 2}, "Traceparent", parent); err != nil {
		return "", err
	}
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	list, found := r.spans.wait(wait, trace, "llm_request")
	if !found {
		return "", fmt.Errorf("no span llm_request of the engine in the trace; it has %v", list)
	}
	list, found = r.spans.wait(wait, trace, "kvpilot.proxy")
	if !found {
		return "", fmt.Errorf("no span kvpilot.proxy in the trace; it has %v", list)
	}
	byID := map[string]string{}
	for _, s := range list {
		byID[s.id] = s.name
	}
	for _, s := range list {
		if s.name == "llm_request" {
			if byID[s.parent] == "" {
				return "", fmt.Errorf("the engine's span is no child of the router's: %v", list)
			}
			return fmt.Sprintf("%d spans in one trace; llm_request is a child of %s", len(list), byID[s.parent]), nil
		}
	}
	return "", fmt.Errorf("spans %v", list)
}
