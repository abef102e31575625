package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
)

// wholeAnswer is a request for an answer in one piece. With a parser, or without one, the engine is asked for it as it is.
type wholeAnswer struct {
	name, path         string
	body               object
	asIsWith, asIsSans bool
}

// wholeAnswers are the requests. Markup are ids of tokens that calls of tools are made of.
func wholeAnswers(letters, markup []uint32) []wholeAnswer {
	const chats = "/v1/chat/completions"
	tools := []object{{"type": "function", "function": weatherTool}}
	return []wholeAnswer{
		{"completion", "/v1/completions", object{"prompt": "Story 3 about a router"}, false, false},
		{"completion with a stop string", "/v1/completions", object{"prompt": "Story 5 about a stop", "stop": []string{"er ", "zzz"}}, false, false},
		{"chat", chats, object{"messages": []object{{"role": "user", "content": "Question: Größe 你好?"}}}, false, false},
		{"chat with a stop string", chats, object{"messages": []object{{"role": "user", "content": "Where do you \"stop\"?"}}, "stop": []string{"qu"}}, true, false},
		{"chat with tools", chats, object{"messages": []object{{"role": "user", "content": "Which weather?"}}, "tools": tools}, false, true},
		{"chat with tools and their markup", chats, object{
			"messages": []object{{"role": "user", "content": "Which weather is it?"}}, "tools": tools, "allowed_token_ids": append(markup, letters[:20]...),
		}, false, true},
	}
}

// unlike are the parts of two equal answers in one piece that are never the same.
var unlike = regexp.MustCompile(`"created":\d+|"(cached|created_cache)_tokens":\d+`)

// checkInside: an answer in one piece that the router requests as a stream is byte for byte the engine's own, and continues wherever the
// connection to its engine is cut.
func (r *disturbances) checkInside(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, c, err := r.behindCutter(ctx, "inside", "router: {resume_unstreamed: true}\n")
	if err != nil {
		return "", err
	}
	defer p.stop()
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	markup, err := r.idsOf(ctx, `<tool_call>{"name": "weather", "arguments": {"city": "Ulm", "days": 1}}</tool_call>`)
	if err != nil {
		return "", err
	}
	equal, cuts, same := 0, 0, 0
	for n, ask := range wholeAnswers(letters, markup) {
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
		if as := !r.plain && ask.asIsWith || r.plain && ask.asIsSans; as != (streams == 0) {
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
