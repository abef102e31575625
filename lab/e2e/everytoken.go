package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/internal/compare"
)

// tokenKind is a kind of requests whose streams are cut at every event, with the members that it has more than others of its path.
type tokenKind struct {
	name, path string
	more       object
	// whole: the answer is of tokens that are whole characters.
	whole bool
}

// body is the nth request of the kind.
func (k *tokenKind) body(n int, letters []uint32) object {
	body := object{"model": "tiny", "stream": true, "temperature": 0, "max_tokens": 24}
	question := fmt.Sprintf("Question %d: what is next?", n)
	switch k.path {
	case "/v1/responses":
		body["input"], body["max_output_tokens"] = question, 24
		delete(body, "max_tokens")
	case "/v1/completions":
		body["prompt"] = question
	default:
		body["messages"] = []object{{"role": "user", "content": question}}
	}
	if strings.HasSuffix(k.path, "/completions") {
		body["stream_options"] = object{"include_usage": true}
	}
	if k.whole {
		body["allowed_token_ids"] = letters
	}
	maps.Copy(body, k.more)
	return body
}

// weatherTool is the tool of the requests.
var weatherTool = object{"name": "weather", "description": "The weather of a city", "parameters": object{
	"type": "object", "properties": object{"city": object{"type": "string", "enum": []string{"Ulm", "Rom"}}, "days": object{"type": "integer", "minimum": 1, "maximum": 9}}, "required": []string{"city", "days"}, "additionalProperties": false,
}}

func tokenKinds() []*tokenKind {
	const chats, messages = "/v1/chat/completions", "/v1/messages"
	tools := []object{{"type": "function", "function": weatherTool}}
	own := []object{{"name": "weather", "description": "The weather", "input_schema": weatherTool["parameters"]}}
	return []*tokenKind{
		{"chat", chats, nil, true},
		{"completion", "/v1/completions", nil, true},
		{"tools auto", chats, object{"tools": tools}, true},
		{"tools required", chats, object{"tools": tools, "tool_choice": "required", "max_tokens": 40}, false},
		{"tool named", chats, object{"tools": tools, "tool_choice": object{"type": "function", "function": object{"name": "weather"}}}, false},
		{"json_schema", chats, object{"response_format": object{"type": "json_schema", "json_schema": object{"name": "w", "schema": weatherTool["parameters"]}}}, false},
		{"regex", chats, object{"structured_outputs": object{"regex": "[a-z]{3,9}( [a-z]{2,7}){4}"}}, false},
		{"stop strings", chats, object{"stop": []string{"zzz", "never comes"}}, true},
		{"log probabilities", chats, object{"logprobs": true, "top_logprobs": 2}, true},
		{"messages with tools", messages, object{"tools": own}, false},
		{"messages, tool named", messages, object{"tools": own, "tool_choice": object{"type": "tool", "name": "weather"}}, false},
		{"responses", "/v1/responses", nil, false},
	}
}

// checkEveryToken cuts streams of each kind after every one of their events, and kills replicas under streams of all kinds. Each must be whole, and the
// undisturbed one.
func (r *disturbances) checkEveryToken(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	p, c, err := r.behindCutter(ctx, "every-token", "")
	if err != nil {
		return "", err
	}
	results := map[string]*tokenResult{}
	kinds := tokenKinds()
	began := time.Now()
	answers := 0
	for ; time.Since(began) < r.everyTokenFor; answers++ {
		for _, k := range kinds {
			if results[k.name] == nil {
				results[k.name] = &tokenResult{}
			}
			if err := r.cutEveryEvent(ctx, p, c, k, k.body(answers, letters), results[k.name]); err != nil {
				p.stop()
				return "", fmt.Errorf("%s: %w", k.name, err)
			}
		}
	}
	p.stop()
	killed, err := r.killTokens(ctx, kinds, letters)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	var all tokenResult
	for _, k := range kinds {
		one := results[k.name]
		all.add(one)
		fmt.Fprintf(&text, "%s %s; ", k.name, one)
	}
	detail := fmt.Sprintf("%d answers of each of %d kinds: %s; kill -9: %s; %s", answers, len(kinds), &all, killed, text.String())
	if bad := all.cuts - all.same; all.lost+killed.lost > 0 || bad > all.cuts/50 {
		return "", errors.New(detail)
	}
	return detail, nil
}

// tokenResult counts cut streams: with the undisturbed answer, with its very bytes, with its bytes cut into other events, and lost ones.
type tokenResult struct {
	cuts, same, bytes, recut, lost int
	// got and want are the first events that are not the same, of a stream whose events differ in more than the cuts.
	got, want string
}

func (t *tokenResult) add(o *tokenResult) {
	t.cuts, t.same, t.bytes, t.recut, t.lost = t.cuts+o.cuts, t.same+o.same, t.bytes+o.bytes, t.recut+o.recut, t.lost+o.lost
}

// String gives the counts, and an example of a difference.
func (t *tokenResult) String() string {
	text := fmt.Sprintf("%d cut, %d the same answer (%d byte for byte, %d cut into other events), %d lost", t.cuts, t.same, t.bytes, t.recut, t.lost)
	if t.got != "" {
		text += fmt.Sprintf("\n      got  %s\n      want %s\n     ", t.got, t.want)
	}
	return text
}

// compare counts a stream that was cut.
func (t *tokenResult) compare(got, want string) {
	t.cuts++
	switch {
	case !compare.IsWhole(got):
		t.lost++
		return
	case compare.Exact(got) == compare.Exact(want):
		t.bytes++
		t.same++
		return
	case compare.Content(got) == compare.Content(want):
		t.same++
		if compare.Forms(got) == compare.Forms(want) {
			t.recut++
			return
		}
		got, want = compare.Forms(got), compare.Forms(want)
	}
	if t.got == "" {
		t.got, t.want = compare.Difference(got, want)
	}
}

// cutEveryEvent cuts the answer to one request after each of its events but the last.
func (r *disturbances) cutEveryEvent(ctx context.Context, p *routerProcess, c *eventCutter, k *tokenKind, body object, to *tokenResult) error {
	want, err := readStream(ctx, r.engines[0].url()+k.path, body)
	if err != nil {
		return err
	}
	if !compare.IsWhole(want) {
		return fmt.Errorf("undisturbed: %s", want)
	}
	for at := 1; at < compare.Events(want); at++ {
		c.cut(int64(at))
		got, err := readStream(ctx, p.url()+k.path, body)
		if err != nil {
			return fmt.Errorf("cut after %d events: %w", at, err)
		}
		if !c.spared() {
			to.compare(got, want)
		}
	}
	return nil
}

// killTokens kills replicas in turn while streams of all kinds are under way.
func (r *disturbances) killTokens(ctx context.Context, kinds []*tokenKind, letters []uint32) (*tokenResult, error) {
	to := &tokenResult{}
	want := map[string]string{}
	for _, k := range kinds {
		var err error
		if want[k.name], err = readStream(ctx, r.engines[0].url()+k.path, k.body(1000, letters)); err != nil {
			return nil, err
		}
	}
	for n := range r.tokenKills {
		victim := r.engines[n%len(r.engines)]
		var all sync.WaitGroup
		var mu sync.Mutex
		var failed error
		for _, k := range kinds {
			all.Go(func() {
				got, err := readStream(ctx, r.router.url()+k.path, k.body(1000, letters), "X-Kvpilot-Policy", "round-robin")
				mu.Lock()
				defer mu.Unlock()
				if failed = errors.Join(failed, err); err == nil {
					to.compare(got, want[k.name])
				}
			})
		}
		time.Sleep(time.Duration(150+rand.IntN(350)) * time.Millisecond) // into the streams
		victim.kill()
		all.Wait()
		if failed != nil {
			return nil, failed
		}
		if err := victim.start(ctx); err != nil {
			return nil, err
		}
		if err := victim.wait(ctx, startWait); err != nil {
			return nil, err
		}
		if err := r.router.waitExact(ctx, len(r.engines), time.Minute); err != nil {
			return nil, err
		}
	}
	return to, r.remember()
}

// readStream asks for a stream and reads it whole.
func readStream(ctx context.Context, url string, body object, header ...string) (string, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	resp, err := open(ctx, "POST", url, raw, header...)
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
