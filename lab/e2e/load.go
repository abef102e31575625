package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/internal/loadgen"
)

// changing are the parts of a stream that differ from call to call.
var changing = regexp.MustCompile(`"(id|created)":("[^"]*"|\d+)`)

// checkStreams compares the bytes of streams through the router with the bytes of direct calls.
func (r *answers) checkStreams(ctx context.Context) (string, error) {
	chat := []object{{"role": "user", "content": "Tell me something about rivers and time."}}
	cases := map[string]object{
		"/v1/chat/completions": {"messages": chat, "stream_options": object{"include_usage": true}, "logprobs": true, "top_logprobs": 2},
		"/v1/completions":      {"prompt": "Once upon a time there was", "stream_options": object{"include_usage": true}, "n": 1, "logprobs": 1},
	}
	if r.atLeast(32) {
		cases["/v1/messages"] = object{"messages": chat}
		cases["/v1/responses"] = object{"input": "Tell me something.", "max_output_tokens": 24}
	}
	size := 0
	for path, body := range cases {
		body["model"], body["stream"], body["temperature"] = "tiny", true, 0
		if path != "/v1/responses" {
			body["max_tokens"] = 24
		}
		raw, err := json.Marshal(body)
		if err != nil {
			return "", err
		}
		stream := func(url string) (string, error) {
			code, b, err := call(ctx, "POST", url+path, raw, "X-Request-Id", "same")
			if err != nil || code != 200 {
				return "", fmt.Errorf("%s: %d %.200s %w", path, code, b, err)
			}
			return normal(b), nil
		}
		same, err := r.compareStream(ctx, path, raw, stream)
		if err != nil {
			return "", err
		}
		size += same
	}
	return fmt.Sprintf("%d routes, %d bytes: equal but for ids and times", len(cases), size), nil
}

// compareStream wants one routed stream that has the bytes of a direct one. An engine whose
// reader was late merges tokens into one chunk, so several pairs are tried.
func (r *answers) compareStream(ctx context.Context, path string, raw []byte, stream func(url string) (string, error)) (int, error) {
	// The first answer fills the cache, whose use shows in the others' usage.
	if _, err := stream(r.engines[0].url()); err != nil {
		return 0, err
	}
	direct := map[string]bool{}
	var one, routed string
	for range 20 {
		text, err := stream(r.engines[0].url())
		if err != nil {
			return 0, err
		}
		direct[text], one = true, text
		if routed, err = r.pinned(ctx, path, raw); err != nil {
			return 0, err
		}
		if direct[routed] {
			return len(routed), nil
		}
	}
	return 0, fmt.Errorf("%s: 20 pairs, none equal; the last one:\nrouted %.1500s\ndirect %.1500s", path, routed, one)
}

// pinned streams through the router from the first replica.
func (r *answers) pinned(ctx context.Context, path string, raw []byte) (string, error) {
	code, b, err := call(ctx, "POST", r.router.url()+path, raw, "X-Request-Id", "same", "X-Kvpilot-Pin", r.engines[0].id)
	if err != nil || code != 200 {
		return "", fmt.Errorf("%s: %d %.200s %w", path, code, b, err)
	}
	return normal(b), nil
}

var itemIDs = regexp.MustCompile(`"(item_id|created_at)":("[^"]*"|\d+)`)

// normal takes out fields that differ from call to call.
func normal(b []byte) string {
	b = changing.ReplaceAll(b, []byte(`"$1":0`))
	return string(itemIDs.ReplaceAll(b, []byte(`"$1":0`)))
}

// checkLoad plays conversations of 32 clients.
func (r *disturbances) checkLoad(ctx context.Context) (string, error) {
	var s loadgen.Summary
	load := loadgen.Config{
		URL: r.router.url(), Model: "tiny", Conversations: 64, Turns: 3, Concurrency: 32, Tenants: 4,
		SystemWords: 60, UserWords: 20, MaxTokens: 8, Seed: uint64(time.Now().UnixNano()), Timeout: 2 * time.Minute,
	}
	began := time.Now()
	if err := loadgen.Run(ctx, load, s.Add); err != nil {
		return "", err
	}
	if s.Failed > 0 || s.Requests != load.Requests() {
		return "", fmt.Errorf("%d of %d requests failed, first: %w", s.Failed, s.Requests, s.FirstError)
	}
	if err := r.router.released(ctx); err != nil {
		return "", err
	}
	if len(s.PerReplica) != len(r.engines) {
		return "", fmt.Errorf("only these replicas worked: %v", s.PerReplica)
	}
	return fmt.Sprintf("%d requests, none failed, %.0f %% of prompt tokens cached, %v, %.0f s", s.Requests, 100*s.CachedShare(), s.PerReplica, time.Since(began).Seconds()), nil
}

// outcome is one long stream of the kill check.
type outcome struct {
	replica string
	whole   bool
	err     string
}

// checkKill kills one replica under load: no stream may be lost, the streams that it was serving are resumed, and its return is
// learned again.
func (r *disturbances) checkKill(ctx context.Context) (string, error) {
	victim := r.engines[len(r.engines)-1]
	prompt := strings.Repeat("The router sends each request to the replica. ", 12)
	body := object{"model": "tiny", "prompt": prompt, "max_tokens": 4, "return_token_ids": true}
	a, err := post(ctx, r.router.url()+"/v1/completions", body, "X-Kvpilot-Pin", victim.id)
	if err != nil {
		return "", err
	}
	ids := a.ids("choices", 0, "prompt_token_ids")
	if _, err := r.router.holds(ctx, victim.id, ids, "", ""); err != nil {
		return "", err
	}
	outcomes := make([]outcome, 24)
	var wg sync.WaitGroup
	for i := range outcomes {
		wg.Go(func() { outcomes[i] = r.router.longStream(ctx, i) })
		time.Sleep(100 * time.Millisecond)
		if i == len(outcomes)/2 {
			victim.kill()
		}
	}
	wg.Wait()
	for i, o := range outcomes {
		if !o.whole {
			return "", fmt.Errorf("stream %d of replica %q was lost: %s", i, o.replica, o.err)
		}
	}
	resumed, err := r.router.resumed(ctx)
	if err != nil || resumed == 0 {
		return "", fmt.Errorf("%s was killed while streams ran on it, and %v were resumed: %w", victim.id, resumed, err)
	}
	if err := r.router.released(ctx); err != nil {
		return "", err
	}
	began := time.Now()
	if err := victim.start(ctx); err != nil {
		return "", err
	}
	if err := victim.wait(ctx, 10*time.Minute); err != nil {
		return "", err
	}
	if err := r.remember(); err != nil {
		return "", err
	}
	if err := r.router.waitExact(ctx, len(r.engines), time.Minute); err != nil {
		return "", err
	}
	a, err = post(ctx, r.router.url()+"/v1/completions", body, "X-Kvpilot-Pin", victim.id)
	if err != nil {
		return "", err
	}
	if got := a.header.Get("X-Kvpilot-Overlap-Tokens"); got != "0" || a.cached() != 0 {
		return "", fmt.Errorf("after its return the router believes %s cached tokens, the engine has %d", got, a.cached())
	}
	if _, err := r.router.holds(ctx, victim.id, ids, "", ""); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d streams, none lost, %v resumed; %s is back and learned again after %.0f s", len(outcomes), resumed, victim.id, time.Since(began).Seconds()), nil
}

// longStream asks for a stream of a few seconds.
func (p *routerProcess) longStream(ctx context.Context, i int) outcome {
	raw, err := json.Marshal(object{"model": "tiny", "prompt": fmt.Sprintf("stream %d continues", i), "max_tokens": 300, "ignore_eos": true, "stream": true})
	if err != nil {
		return outcome{err: err.Error()}
	}
	resp, err := open(ctx, "POST", p.url()+"/v1/completions", raw, "X-Kvpilot-Policy", "round-robin")
	if err != nil {
		return outcome{err: err.Error()}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	o := outcome{replica: resp.Header.Get("X-Kvpilot-Replica")}
	o.whole = err == nil && resp.StatusCode == http.StatusOK && bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) && !bytes.Contains(b, []byte(`data: {"error"`))
	if !o.whole {
		o.err = fmt.Sprintf("status %d, %v, ends with %q", resp.StatusCode, err, b[max(0, len(b)-200):])
	}
	return o
}
