package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// checkPause: a replica that is paused in the middle of an answer aborts it, and ends it as if it were whole. The client gets the rest from
// another replica, or an error.
func (r *run) checkPause(ctx context.Context) (string, error) {
	if r.sim || len(r.fleet) < 2 {
		return "skipped: needs two real replicas", nil
	}
	addresses := make([]string, len(r.fleet))
	for i, e := range r.fleet {
		addresses[i] = "127.0.0.1:" + strconv.Itoa(e.http)
	}
	url, stop, err := r.resuming(ctx, addresses)
	if err != nil {
		return "", err
	}
	defer stop()
	const tokens = 200
	message := []object{{"role": "user", "content": "Tell me a story"}}
	ask := object{"model": "tiny", "temperature": 0, "ignore_eos": true, "max_tokens": tokens, "messages": message}
	var seen []string
	for _, c := range []struct {
		name, path string
		body       object
		// broken: the answer ends with an error, since it cannot be resumed.
		broken bool
	}{
		{"stream", "/v1/chat/completions", with(ask, object{"stream": true, "stream_options": object{"include_usage": true}}), false},
		{"stream with tools", "/v1/chat/completions", with(ask, object{"stream": true, "seed": 1, "temperature": 1}), true},
		{"unstreamed", "/v1/chat/completions", ask, false},
		{"messages", "/v1/messages", object{"model": "tiny", "max_tokens": tokens, "messages": message, "stream": true}, true},
	} {
		text, err := r.pausedWhile(ctx, url+c.path, c.body)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		failed := strings.Contains(text, "upstream_stream_broken") || strings.Contains(text, `"type":"error"`)
		switch {
		case strings.Contains(text, `"finish_reason":"abort"`), failed != c.broken:
			return "", fmt.Errorf("%s: the client got\n%s", c.name, tail(text))
		case !c.broken && !strings.Contains(text, fmt.Sprintf(`"completion_tokens":%d`, tokens)):
			return "", fmt.Errorf("%s: the answer is not whole:\n%s", c.name, tail(text))
		}
		seen = append(seen, c.name)
	}
	return "whole or an error: " + strings.Join(seen, ", "), nil
}

// with is an object with more members.
func with(o, more object) object {
	all := object{}
	for _, from := range []object{o, more} {
		for name, value := range from {
			all[name] = value
		}
	}
	return all
}

// tail is the end of a text.
func tail(text string) string { return text[max(0, len(text)-1500):] }

// pausedWhile asks, pauses the replica that answers for a second once its answer is under way, and returns the answer.
func (r *run) pausedWhile(ctx context.Context, url string, body object) (string, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	paused := make(chan error, 1)
	go func() { paused <- r.pauseBusy(ctx) }()
	resp, err := open(ctx, "POST", url, raw)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read to the end
	text, err := io.ReadAll(bufio.NewReader(resp.Body))
	return string(text), errors.Join(err, <-paused)
}

// pauseBusy waits until a replica computes an answer, pauses it with the mode abort, and resumes it after a second.
func (r *run) pauseBusy(ctx context.Context) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, e := range r.fleet {
			_, page, err := call(ctx, "GET", e.url()+"/metrics", nil)
			if err != nil {
				return err
			}
			if !busy(string(page)) {
				continue
			}
			time.Sleep(300 * time.Millisecond)
			if code, text, err := call(ctx, "POST", e.url()+"/pause?mode=abort", nil); err != nil || code != 200 {
				return fmt.Errorf("pause: %d %s %w", code, text, err)
			}
			time.Sleep(time.Second)
			code, text, err := call(ctx, "POST", e.url()+"/resume", nil)
			if err != nil || code != 200 {
				return fmt.Errorf("resume: %d %s %w", code, text, err)
			}
			return nil
		}
	}
	return errors.New("no replica was busy within 20 s")
}

// busy reports whether a page of metrics shows a running request.
func busy(page string) bool {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "vllm:num_requests_running") && !strings.HasSuffix(strings.TrimSpace(line), " 0.0") {
			return true
		}
	}
	return false
}
