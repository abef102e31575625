package enginesim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// withMooncake is an engine with Mooncake in a role; empty for both.
func withMooncake(role string) enginesim.Config {
	c := connectedBy("mooncake")
	c.Transfer.KVRole = role
	return c
}

const askMooncake = `{"model":"sim","max_tokens":12,"seed":1,`

// keep has an engine compute a prompt of n tokens under the name of a transfer; params are further members.
func keep(t *testing.T, p *replica, n int, transfer string) (code int, body []byte) {
	t.Helper()
	return p.post(t, "/v1/completions", `{"model":"sim","max_tokens":1,"ignore_eos":true,`+longPrompt(n)+`,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,`+transfer+`}}`)
}

// engineID is the id of an engine's process, by its bootstrap server.
func engineID(t *testing.T, p *replica) string {
	t.Helper()
	code, body := p.get(t, "/query")
	if code != 200 {
		t.Fatalf("/query: %d %s", code, body)
	}
	return at(decode(t, body), "0", "engine_id").(string)
}

// fromMooncake are the parameters with which an engine reads a transfer of p.
func fromMooncake(p *replica, engine, transfer string) string {
	return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":%q,"remote_bootstrap_addr":%q,"remote_engine_id":%q}}`, transfer, p.url, engine)
}

func TestMooncakeFindsAPromptByItsTransfer(t *testing.T) {
	alone, p, d := start(t, fast()), start(t, withMooncake("kv_producer")), start(t, withMooncake("kv_consumer"))
	_, whole := alone.post(t, "/v1/completions", askMooncake+longPrompt(300)+`}`)
	want := at(decode(t, whole), "choices", 0, "text")
	code, body := keep(t, p, 300, `"transfer_id":"xfer-1"`)
	if code != 200 || at(decode(t, body), "kv_transfer_params") != nil {
		t.Fatalf("%d %s", code, body)
	}
	p.untilPinned(t, 1)
	code, body = d.post(t, "/v1/completions", askMooncake+longPrompt(300)+fromMooncake(p, engineID(t, p), "xfer-1"))
	if code != 200 || at(decode(t, body), "choices", 0, "text") != want || cachedOf(t, body) != 300 {
		t.Errorf("%d %s, want the text %v and all tokens from the other engine", code, body, want)
	}
	p.untilPinned(t, 0)

	first := make(chan []byte, 1)
	go func() {
		_, body := d.post(t, "/v1/completions", askMooncake+longPrompt(300)+fromMooncake(p, engineID(t, p), "xfer-2"))
		first <- body
	}()
	time.Sleep(50 * time.Millisecond)
	keep(t, p, 300, `"transfer_id":"xfer-2"`)
	if body := <-first; at(decode(t, body), "choices", 0, "text") != want {
		t.Errorf("the leg that decodes first: %s", body)
	}
	if code, _ := d.get(t, "/query"); code != 404 {
		t.Errorf("an engine that only decodes has a bootstrap server: %d", code)
	}
}

// Without one of its members vLLM does not use the parameters, and computes the prompt.
func TestMooncakeNeedsEachMember(t *testing.T) {
	p, d := start(t, withMooncake("")), start(t, withMooncake(""))
	for _, transfer := range []string{`"transfer_id":null`, `"transfer_id":""`, `"other":1`} {
		if code, body := keep(t, p, 300, transfer); code != 200 {
			t.Errorf("%s: %d %s", transfer, code, body)
		}
		if kept, _ := p.pinned(t); kept != 0 {
			t.Errorf("%s: %d prompts are kept", transfer, kept)
		}
	}
	keep(t, p, 300, `"transfer_id":"xfer-1"`)
	for _, member := range []string{"transfer_id", "remote_bootstrap_addr", "remote_engine_id"} {
		ask := askMooncake + longPrompt(300) + strings.Replace(fromMooncake(p, engineID(t, p), "xfer-1"), `"`+member+`"`, `"not_`+member+`"`, 1)
		if code, body := d.post(t, "/v1/completions", ask); code != 200 || cachedOf(t, body) == 300 {
			t.Errorf("without %s: %d %s", member, code, body)
		}
	}
	if kept, _ := p.pinned(t); kept != 1 {
		t.Errorf("%d prompts are kept, want the one that nothing has read", kept)
	}
}

// An engine that is asked for another part than its own stops, as vLLM's assertions have it.
func TestMooncakeEngineOfAnotherRoleStops(t *testing.T) {
	p, d := start(t, withMooncake("kv_producer")), start(t, withMooncake("kv_consumer"))
	if code, _ := d.post(t, "/v1/completions", `{"model":"sim","max_tokens":1,`+longPrompt(64)+`,"kv_transfer_params":{"do_remote_decode":true,"transfer_id":"x"}}`); code != 500 {
		t.Errorf("one that decodes is asked to prefill: %d", code)
	}
	if code, _ := p.post(t, "/v1/completions", askMooncake+longPrompt(64)+fromMooncake(p, engineID(t, p), "x")); code != 500 {
		t.Errorf("one that prefills is asked to decode: %d", code)
	}
}

// A process that has restarted has another id: the former one is unknown, and an engine that has met it waits in vain.
func TestMooncakeEngineHasANewIDAfterItsRestart(t *testing.T) {
	p, d, fresh := start(t, withMooncake("")), start(t, withMooncake("")), start(t, withMooncake(""))
	former := engineID(t, p)
	keep(t, p, 300, `"transfer_id":"xfer-1"`)
	d.post(t, "/v1/completions", askMooncake+longPrompt(300)+fromMooncake(p, former, "xfer-1"))
	p.post(t, "/sim/restart", `{}`)
	eventually(t, "the engine to restart", func() bool { code, _ := p.get(t, "/query"); return code == 200 })
	keep(t, p, 300, `"transfer_id":"xfer-2"`)
	if engineID(t, p) == former {
		t.Error("the engine has its former id")
	}
	if code, body := fresh.post(t, "/v1/completions", askMooncake+longPrompt(300)+fromMooncake(p, former, "xfer-2")); code != 500 {
		t.Errorf("the former id, asked for the first time: %d %s", code, body)
	}
	ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer leave()
	other := strings.Replace(longPrompt(300), "1000", "999", 1) // nothing of it is in the cache
	if resp, err := d.try(ctx, "/v1/completions", askMooncake+other+fromMooncake(p, former, "xfer-2")); err == nil {
		resp.Body.Close()
		t.Errorf("the former id, met before: status %d", resp.StatusCode)
	}
	if code, body := fresh.post(t, "/v1/completions", askMooncake+longPrompt(300)+fromMooncake(p, engineID(t, p), "xfer-2")); code != 200 {
		t.Errorf("the new id: %d %s", code, body)
	}
}
