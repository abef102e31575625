package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
)

// wholeAnswers are requests for answers in one piece, by path.
var wholeAnswers = []struct {
	name, path string
	body       object
}{
	{"completion", "/v1/completions", object{"prompt": "Story 3 about a router"}},
	{"completion with a stop string", "/v1/completions", object{"prompt": "Story 5 about a stop", "stop": []string{"er ", "zzz"}}},
	{"chat", "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": "Question: Größe 你好?"}}}},
	{"chat with a stop string", "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": "Where do you \"stop\"?"}}, "stop": []string{"qu"}}},
}

// unlike are the parts of two equal answers in one piece that are never the same.
var unlike = regexp.MustCompile(`"created":\d+|"(cached|created_cache)_tokens":\d+`)

// checkInside: an answer in one piece that the router requests as a stream is byte for byte the engine's own, and continues wherever the
// connection to its engine is cut. Of engines with a parser the chats are requested as they are.
func (r *disturbances) checkInside(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var c eventCutter
	front := make([]string, 2)
	for i := range front {
		var err error
		if front[i], err = listenBefore(ctx, strconv.Itoa(r.engines[i%len(r.engines)].http), c.serve); err != nil {
			return "", err
		}
	}
	p, err := r.another(ctx, "inside", front, "router: {resume_unstreamed: true}\nchooser: {policy: round-robin}\nupstream: {breaker: {failures: 0, min_requests: 1000000}}\n")
	if err != nil {
		return "", err
	}
	defer p.stop()
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	equal, cuts, same := 0, 0, 0
	for n, ask := range wholeAnswers {
		body := object{"model": "tiny", "temperature": 0, "max_tokens": 64, "ignore_eos": true, "repetition_penalty": 1.3, "allowed_token_ids": letters}
		for name, value := range ask.body {
			body[name] = value
		}
		id := fmt.Sprint("inside-", n)
		want, err := readWhole(ctx, r.engines[0].url()+ask.path, body, id)
		if err != nil {
			return "", err
		}
		before := c.streams.Load()
		for i := range 6 { // the first ones teach the router the engines' form
			got, err := readWhole(ctx, p.url()+ask.path, body, id)
			if err != nil {
				return "", err
			}
			if unlike.ReplaceAllString(got, "") != unlike.ReplaceAllString(want, "") {
				return "", fmt.Errorf("%s, answer %d:\n%s\nthe engine's\n%s", ask.name, i, got, want)
			}
			equal++
		}
		streams := c.streams.Load() - before
		if as := ask.path == "/v1/chat/completions" && !r.plain; as != (streams == 0) {
			return "", fmt.Errorf("%s: %d of 6 answers were requested as streams", ask.name, streams)
		}
		for at := int64(1); streams > 0 && at < 60; at += 3 {
			c.cut(at)
			got, err := readWhole(ctx, p.url()+ask.path, body, id)
			if err != nil {
				return "", fmt.Errorf("%s, cut after %d events: %w", ask.name, at, err)
			}
			if !c.spared() {
				cuts++
				if unlike.ReplaceAllString(got, "") == unlike.ReplaceAllString(want, "") {
					same++
				}
			}
		}
	}
	text := fmt.Sprintf("%d answers byte for byte the engine's; of %d that were cut %d", equal, cuts, same)
	if cuts < 20 || cuts-same > cuts/20 {
		return "", fmt.Errorf("%s", text)
	}
	return text, nil
}

// readWhole asks for an answer in one piece.
func readWhole(ctx context.Context, url string, body object, id string) (string, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	resp, err := open(ctx, "POST", url, raw, "X-Request-Id", id)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, all)
	}
	return string(all), err
}
