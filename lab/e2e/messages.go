package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
)

// sampledMessages are requests whose answers are drawn from one token only, so that they can be compared.
var sampledMessages = []object{
	{"messages": []object{{"role": "user", "content": "Question: Größe 你好?"}}},
	{"system": []object{{"type": "text", "text": "Be brief."}}, "messages": []object{
		{"role": "user", "content": []object{{"type": "text", "text": "What is a router?"}}},
		{"role": "assistant", "content": []object{{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "A thing."}}},
		{"role": "user", "content": []object{{"type": "text", "text": "And"}, {"type": "text", "text": "then?"}}},
	}},
	{"messages": []object{
		{"role": "user", "content": "The weather in Ulm?"},
		{"role": "assistant", "content": []object{{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": object{"city": "Ulm", "days": 2}}}},
		{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "toolu_1", "content": []object{{"type": "text", "text": "rain"}}}}},
	}, "tools": []object{{"name": "weather", "description": "The weather of a city", "input_schema": object{"properties": object{"city": object{"type": "string"}}}}}, "tool_choice": object{"type": "auto"}},
	{"messages": []object{{"role": "user", "content": "Story 4 about a router"}}, "stop_sequences": []string{"zzz"}, "thinking": object{"type": "adaptive"}, "output_config": object{"effort": "low"}},
}

// differs are the parts of a message's events that are never the same: names, and how much of the prompt was in the cache.
var differs = regexp.MustCompile(`"id":"chatcmpl-[^"]*"|"signature":"[0-9a-f]*"|"input_tokens":\d+|,"cache_read_input_tokens":\d+|,"cache_creation_input_tokens":\d+`)

// checkMessages: sampled messages, which the router asks engines for as chats, have the engine's own events byte for byte, and continue on
// another replica wherever the connection to their own is cut.
func (r *disturbances) checkMessages(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var c cutter
	url, stop, err := r.behind(ctx, &c)
	if err != nil {
		return "", err
	}
	defer stop()
	cuts, equal, lost, events := 0, 0, 0, 0
	for n, body := range sampledMessages {
		body["model"], body["stream"], body["top_k"], body["max_tokens"] = "tiny", true, 1, 24
		engines, size, err := readMessage(ctx, r.engines[0].url(), body)
		if err != nil {
			return "", err
		}
		routed, _, err := readMessage(ctx, url, body)
		if err != nil {
			return "", err
		}
		if want, got := differs.ReplaceAllString(engines, ""), differs.ReplaceAllString(routed, ""); got != want {
			return "", fmt.Errorf("message %d: the router's events are\n%s\nthe engine's\n%s", n, got, want)
		}
		events += strings.Count(engines, "event: ")
		met := 0
		for at := 700; at < size+1500; at += 151 {
			c.left.Store(int64(at))
			got, _, err := readMessage(ctx, url, body)
			if err != nil {
				return "", err
			}
			if c.left.Swap(whole) == whole { // the cutter has seen a chat
				met++
			}
			cuts++
			switch text := messageText(got); {
			case strings.Contains(got, "event: error") || !strings.Contains(got, "event: message_stop"):
				lost++
			case text == messageText(engines):
				equal++
			}
		}
		if met == 0 {
			return "", fmt.Errorf("message %d was not asked for as a chat", n)
		}
	}
	if other := cuts - equal - lost; lost > cuts/10 || other > cuts/20 {
		return "", fmt.Errorf("of %d cuts %d gave the same text, %d another one, and %d ended the stream", cuts, equal, other, lost)
	}
	return fmt.Sprintf("%d events byte for byte the engine's; %d cuts: %d streams whole, %d of them with the very text of the undisturbed ones; %d ended, inside a character", events, cuts, cuts-lost, equal, lost), nil
}

// readMessage asks for a streamed message and reads it whole.
func readMessage(ctx context.Context, url string, body object) (events string, size int, err error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return "", 0, err
	}
	resp, err := open(ctx, "POST", url+"/v1/messages", raw)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, all)
	}
	return string(all), len(all), err
}

// messageText is the text of a message, its stop reason and how many tokens it has.
func messageText(events string) string {
	var text strings.Builder
	for line := range strings.Lines(events) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		var v struct {
			Delta struct {
				Text, Thinking string
				JSON           string `json:"partial_json"`
				Reason         string `json:"stop_reason"`
			}
			Usage struct {
				Output int `json:"output_tokens"`
			}
		}
		if json.Unmarshal([]byte(data), &v) != nil {
			return ""
		}
		text.WriteString(v.Delta.Text + v.Delta.Thinking + v.Delta.JSON + v.Delta.Reason)
		if v.Usage.Output > 0 {
			fmt.Fprint(&text, v.Usage.Output)
		}
	}
	return text.String()
}
