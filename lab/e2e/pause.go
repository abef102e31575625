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
func (r *disturbances) checkPause(ctx context.Context) (string, error) {
	if r.sim || len(r.engines) < 2 {
		return "skipped: needs two real replicas", nil
	}
	addresses := make([]string, len(r.engines))
	for i, e := range r.engines {
		addresses[i] = "127.0.0.1:" + strconv.Itoa(e.http)
	}
	url, stop, err := r.resuming(ctx, addresses)
	if err != nil {
		return "", err
	}
	defer stop()
	const tokens = 1500
	message := []object{{"role": "user", "content": "Tell me a story"}}
	ask := object{"model": "tiny", "temperature": 0, "ignore_eos": true, "max_tokens": tokens, "messages": message}
	stream := with(ask, object{"stream": true, "stream_options": object{"include_usage": true}})
	var seen []string
	for _, c := range []struct {
		name, path string
		body       object
		// resumes: the rest comes from another replica, or an error where the stream was paused inside a character. retries: the answer is
		// whole. Every other answer ends with an error. silent: the replica is frozen for three seconds before it is paused.
		resumes, retries, silent bool
	}{
		{"stream", "/v1/chat/completions", stream, true, false, false},
		{"stream with comments", "/v1/chat/completions", stream, true, false, true},
		{"stream with a seed", "/v1/chat/completions", with(stream, object{"seed": 1, "temperature": 1}), false, false, false},
		{"unstreamed", "/v1/chat/completions", ask, false, true, false},
		{"messages", "/v1/messages", object{"model": "tiny", "max_tokens": tokens, "messages": message, "stream": true}, false, false, false},
		{"responses", "/v1/responses", object{"model": "tiny", "temperature": 0, "max_output_tokens": tokens, "input": "Tell me a story", "stream": true}, false, false, false},
	} {
		if c.silent && r.comments == "" {
			continue
		}
		text, err := r.pausedWhile(ctx, url+c.path, c.body, c.silent)
		for range 5 { // two formats have no ignore_eos: an answer may end before the pause
			if err == nil && !strings.Contains(text, `"stop_reason":"end_turn"`) && !strings.Contains(text, "response.completed") {
				break
			}
			text, err = r.pausedWhile(ctx, url+c.path, c.body, c.silent)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		failed := strings.Contains(text, "stream_broken") || strings.Contains(text, `"type":"error"`)
		whole := !failed && strings.Contains(text, fmt.Sprintf(`"completion_tokens":%d`, tokens))
		if strings.Contains(text, `"finish_reason":"abort"`) || c.retries && !whole || c.resumes && !whole && !failed || !c.retries && !c.resumes && !failed {
			return "", fmt.Errorf("%s: the client got\n%s", c.name, tail(text))
		}
		if c.silent && !strings.Contains(text, ": keep-alive\n\n") {
			return "", fmt.Errorf("%s: no comment came", c.name)
		}
		what := "an error"
		if whole {
			what = "whole"
		}
		seen = append(seen, c.name+" "+what)
	}
	return strings.Join(seen, ", "), nil
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

// pausedWhile asks, pauses the replica that answers for a second once its answer is under way, and returns the answer. With silent the
// replica is frozen for three seconds before that.
func (r *disturbances) pausedWhile(ctx context.Context, url string, body object, silent bool) (string, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	paused := make(chan error, 1)
	go func() { paused <- r.pauseBusy(ctx, silent) }()
	resp, err := open(ctx, "POST", url, raw)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(bufio.NewReader(resp.Body))
	return string(text), errors.Join(err, <-paused)
}

// pauseBusy waits until a replica computes an answer, pauses it with the mode abort, and resumes it after a second.
func (r *disturbances) pauseBusy(ctx context.Context, silent bool) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, e := range r.engines {
			_, page, err := call(ctx, "GET", e.url()+"/metrics", nil)
			if err != nil {
				return err
			}
			if !busy(string(page)) {
				continue
			}
			time.Sleep(300 * time.Millisecond)
			if silent {
				if err := e.pause(ctx, "keep", 3*time.Second); err != nil {
					return err
				}
				time.Sleep(300 * time.Millisecond)
			}
			return e.pause(ctx, "abort", time.Second)
		}
	}
	return errors.New("no replica was busy within 20 s")
}

// pause pauses the replica for a while.
func (e *engine) pause(ctx context.Context, mode string, d time.Duration) error {
	for _, path := range []string{"/pause?mode=" + mode, "/resume"} {
		code, text, err := call(ctx, "POST", e.url()+path, nil)
		if err != nil || code != 200 {
			return fmt.Errorf("%s: %d %s %w", path, code, text, err)
		}
		if path != "/resume" {
			time.Sleep(d)
		}
	}
	return nil
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
