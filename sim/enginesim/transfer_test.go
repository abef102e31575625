package enginesim_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// connected is an engine with NIXL.
func connected() enginesim.Config { return connectedBy("nixl") }

func connectedBy(connector string) enginesim.Config {
	c := fast()
	c.Transfer.Connector = connector
	return c
}

// longPrompt is a completion's prompt of n ids.
func longPrompt(n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(1000 + i)
	}
	return `"prompt":[` + strings.Join(ids, ",") + `]`
}

const asPrefill = `,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}`

// prefill has p compute a prompt of n tokens for another engine and returns what it passes on.
func prefill(t *testing.T, p *replica, n int) string {
	t.Helper()
	return prefillAs(t, p, n, "one")
}

func prefillAs(t *testing.T, p *replica, n int, id string) string {
	t.Helper()
	code, body := p.post(t, "/v1/completions", `{"model":"sim","max_tokens":1,"ignore_eos":true,`+longPrompt(n)+asPrefill, "X-Request-Id", id)
	params, err := json.Marshal(at(decode(t, body), "kv_transfer_params"))
	if code != 200 || err != nil || string(params) == "null" {
		t.Fatalf("%d %s", code, body)
	}
	return string(params)
}

// pinned is how many prompts an engine keeps for others, and how many it kept too long.
func (r *replica) pinned(t *testing.T) (kept, expired int) {
	t.Helper()
	_, body := r.get(t, "/sim/state")
	state := decode(t, body)
	return int(at(state, "ranks", 0, "pinned_prompts").(float64)), int(at(state, "ranks", 0, "expired_prompts").(float64))
}

// untilPinned waits until so many prompts are kept.
func (r *replica) untilPinned(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d prompts to be kept", want), func() bool {
		kept, _ := r.pinned(t)
		return kept == want
	})
}

func TestAnswerFromAnotherEnginesCacheIsThatOfOneEngine(t *testing.T) {
	alone, p, d := start(t, fast()), start(t, connected()), start(t, connected())
	const ask = `{"model":"sim","max_tokens":12,"seed":1,`
	_, whole := alone.post(t, "/v1/completions", ask+longPrompt(300)+`}`)
	params := prefill(t, p, 300)
	if kept, _ := p.pinned(t); kept != 1 {
		t.Errorf("%d prompts are kept", kept)
	}
	code, split := d.post(t, "/v1/completions", ask+longPrompt(300)+`,"kv_transfer_params":`+params+`}`)
	if code != 200 || at(decode(t, split), "choices", 0, "text") != at(decode(t, whole), "choices", 0, "text") {
		t.Errorf("%d %s\nalone %s", code, split, whole)
	}
	if got := cachedOf(t, split); got != 0 {
		t.Errorf("%d cached tokens, want those of the engine that computed the prompt", got)
	}
	p.untilPinned(t, 0)
	_, state := d.get(t, "/sim/state")
	if computed := at(decode(t, state), "ranks", 0, "prompt_tokens").(float64); computed > 16 {
		t.Errorf("the engine that decoded computed %v prompt tokens", computed)
	}
	_, streamed := d.post(t, "/v1/completions", ask+`"stream":true,`+longPrompt(300)+`,"kv_transfer_params":`+prefill(t, p, 300)+`}`)
	if list := events(t, streamed); list[len(list)-1] != "[DONE]" || strings.Contains(string(streamed), "error") {
		t.Errorf("%s", streamed)
	}
}

func TestCacheIsPassedOnOnlyAfterTheLengthEndsTheAnswer(t *testing.T) {
	p := start(t, connected())
	for _, more := range []string{`"stop":["e","a","i","o","u","t","n"," "],"max_tokens":40,`, `"max_tokens":1,"n":2,"stop_token_ids":[0],`} {
		_, body := p.post(t, "/v1/completions", `{"model":"sim",`+more+longPrompt(64)+asPrefill)
		finish := at(decode(t, body), "choices", 0, "finish_reason")
		if params := at(decode(t, body), "kv_transfer_params"); (params == nil) != (finish != "length") {
			t.Errorf("finish %v, params %v", finish, params)
		}
	}
	_, body := start(t, fast()).post(t, "/v1/completions", `{"model":"sim","max_tokens":1,"ignore_eos":true,`+longPrompt(64)+asPrefill)
	if params := at(decode(t, body), "kv_transfer_params"); params != nil {
		t.Errorf("an engine without a connector passes on %v", params)
	}
}

func TestCacheThatCannotBeReadFailsTheAnswer(t *testing.T) {
	ask := func(params, more string) string {
		return `{"model":"sim","max_tokens":12,` + more + longPrompt(300) + `,"kv_transfer_params":` + params + `}`
	}
	lost := map[string]func(t *testing.T, p *replica) string{
		"read already": func(t *testing.T, p *replica) string {
			params := prefill(t, p, 300)
			start(t, connected()).post(t, "/v1/completions", ask(params, ""))
			return params
		},
		"the engine has restarted": func(t *testing.T, p *replica) string {
			params := prefill(t, p, 300)
			p.Restart(0)
			eventually(t, "the next life", func() bool {
				resp, err := p.client.Get(p.url + "/sim/state")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				return err == nil && strings.Contains(string(body), `"life":2`)
			})
			return params
		},
		"another port": func(t *testing.T, p *replica) string {
			return strings.Replace(prefill(t, p, 300), `"remote_port":`, `"remote_port":1,"x":`, 1)
		},
	}
	for name, params := range lost {
		t.Run(name, func(t *testing.T) {
			p, d := start(t, connected()), start(t, connected())
			given := params(t, p)
			if code, body := d.post(t, "/v1/completions", ask(given, "")); code != 500 {
				t.Errorf("%d %s", code, body)
			}
			code, body := d.post(t, "/v1/completions", ask(given, `"stream":true,`))
			if list := events(t, body); code != 200 || !strings.Contains(list[0], `"error"`) || list[len(list)-1] != "[DONE]" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
}

// vLLM computes the prompt itself when the parameters do not say where it lies, and dies of too few blocks.
func TestWrongParameters(t *testing.T) {
	p, d := start(t, connected()), start(t, connected())
	ask := func(params string) string {
		return `{"model":"sim","max_tokens":3,` + longPrompt(300) + `,"kv_transfer_params":` + params + `}`
	}
	if code, body := d.post(t, "/v1/completions", ask(`{"do_remote_prefill":true,"remote_host":"127.0.0.1"}`)); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	few := prefill(t, p, 32)
	resp, err := d.client.Post(d.url+"/v1/completions", "application/json", strings.NewReader(ask(few)))
	if err == nil { // the engine may be gone before its answer is
		if resp.Body.Close(); resp.StatusCode != 500 {
			t.Errorf("too few blocks: %d", resp.StatusCode)
		}
	}
	eventually(t, "the engine to be dead", func() bool { return d.Lives() > 1 || d.Stats() == nil })
}

func TestBlocksThatNoEngineReadsAreKeptForTheLease(t *testing.T) {
	c := connected()
	c.Transfer.Lease = 10 * time.Second // 200 ms of the fast engine
	p := start(t, c)
	prefill(t, p, 300)
	p.untilPinned(t, 0)
	if _, expired := p.pinned(t); expired != 1 {
		t.Errorf("%d expired", expired)
	}
}

func TestClientThatLeavesDuringTheTransferLeavesNothing(t *testing.T) {
	c := connected()
	c.Transfer.Start = time.Hour
	p, d := start(t, connected()), start(t, c)
	params := prefill(t, p, 300)
	ctx, leave := context.WithCancel(t.Context())
	resp := d.send(t, ctx, "/v1/completions", `{"model":"sim","stream":true,`+longPrompt(300)+`,"kv_transfer_params":`+params+`}`)
	leave()
	resp.Body.Close()
	if kept, _ := p.pinned(t); kept != 1 {
		t.Errorf("%d prompts are kept", kept)
	}
}
