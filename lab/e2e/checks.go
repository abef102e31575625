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

// answers are the checks of the router's statements and results for a prompt, next to the engine's own word.
type answers struct {
	stack
	prompts int
}

// disturbances are the checks under load, and while clients leave and replicas pause, move and die.
type disturbances struct {
	stack
	tokenChecks
}

// checks runs all of them, the disturbing ones last.
func (r *run) checks(ctx context.Context) {
	if r.tests != "" {
		r.checkFor(ctx, time.Hour, "vLLM's own tests", r.checkOwnTests)
		return
	}
	if r.connector != "" {
		r.splitChecks(ctx)
		return
	}
	a, d := &answers{r.stack, r.prompts}, &disturbances{r.stack, r.tokenChecks}
	r.check(ctx, "token ids", a.checkTokens)
	r.check(ctx, "block keys and predicted hits", a.checkBlocks)
	r.check(ctx, "conversation returns", a.checkConversation)
	r.check(ctx, "predicted cached tokens", a.checkPredictions)
	r.check(ctx, "other formats", a.checkFormats)
	r.check(ctx, "stream bytes", a.checkStreams)
	r.check(ctx, "ids in the body", a.checkGivenIDs)
	r.check(ctx, "LoRA adapter", a.checkAdapter)
	r.check(ctx, "adapters at run time", a.checkRuntimeAdapter)
	r.check(ctx, "Cohere's format", a.checkCohere)
	r.check(ctx, "realtime", a.checkRealtime)
	r.check(ctx, "cache salt", a.checkSalt)
	r.check(ctx, "traces", a.checkTraces)
	r.check(ctx, "abort", d.checkAbort)
	r.check(ctx, "reset of the prefix cache", a.checkReset)
	r.check(ctx, "resumed streams", d.checkResume)
	if r.atLeast(33) {
		if !r.sim {
			r.check(ctx, "message converter", a.checkConverter)
		}
		r.check(ctx, "sampled messages", d.checkMessages)
	}
	r.check(ctx, "paused replicas", d.checkPause)
	r.check(ctx, "stop strings", d.checkStops)
	r.check(ctx, "32 clients", d.checkLoad)
	r.check(ctx, "drains that move", d.checkMoves)
	r.check(ctx, "64 chats", d.checkChats)
	r.check(ctx, "unstreamed load", func(ctx context.Context) (string, error) { return r.answersOf(ctx, false) })
	r.check(ctx, "streamed load", func(ctx context.Context) (string, error) { return r.answersOf(ctx, true) })
	r.check(ctx, "unstreamed answers", d.checkInside)
	r.check(ctx, "every token", d.checkEveryToken)
	r.check(ctx, "streams that end", d.checkEnds)
	r.check(ctx, "kill -9 under load", d.checkKill)
	r.checkFor(ctx, 2*time.Hour, "a hundred streams killed", d.checkKills)
}

// checkAbort: a client that leaves frees the engine and the reservation.
func (r *disturbances) checkAbort(ctx context.Context) (string, error) {
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
			n, err := r.router.inFlight(ctx)
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
func (p *routerProcess) inFlight(ctx context.Context) (int, error) {
	resp, err := p.api.Routing().GetLoads(ctx, &kvpilotv1.GetLoadsRequest{})
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
func (p *routerProcess) released(ctx context.Context) error {
	const most = 5 * time.Second
	for end := time.Now().Add(most); ; {
		n, err := p.inFlight(ctx)
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d reservations are left after %s", n, most)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// engineLoad sums the running requests that the engines report; an engine that does not answer counts as busy.
func (f *fleet) engineLoad(ctx context.Context) int {
	sum := 0
	for _, e := range f.engines {
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
func (r *answers) checkTraces(ctx context.Context) (string, error) {
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
