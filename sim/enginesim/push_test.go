package enginesim_test

import (
	"context"
	"strings"
	"testing"
	"time"
)

const askPushed = `{"model":"sim","max_tokens":12,"seed":1,`

// usage is the share of an engine's blocks in use.
func usage(t *testing.T, r *replica) float64 {
	t.Helper()
	_, body := r.get(t, "/sim/state")
	return at(decode(t, body), "ranks", 0, "kv_cache_usage").(float64)
}

func withParams(n int, params string) string {
	return askPushed + longPrompt(n) + `,"kv_transfer_params":` + params + `}`
}

// Caches that are pushed find their request by its id, whichever leg is first.
func TestPushedCacheIsFoundByTheRequestID(t *testing.T) {
	alone, p, d := start(t, fast()), start(t, connectedBy("nixl-push")), start(t, connectedBy("nixl-push"))
	_, whole := alone.post(t, "/v1/completions", askPushed+longPrompt(300)+`}`)
	want := at(decode(t, whole), "choices", 0, "text")

	params := prefillAs(t, p, 300, "a")
	if !strings.Contains(params, `"transfer_mode":"push"`) || strings.Contains(params, "expiry") {
		t.Errorf("passed on: %s", params)
	}
	code, body := d.post(t, "/v1/completions", withParams(300, params), "X-Request-Id", "a")
	if got := at(decode(t, body), "choices", 0, "text"); code != 200 || got != want {
		t.Errorf("%d, %v, want %v", code, got, want)
	}
	p.untilPinned(t, 0)

	first := make(chan any, 1)
	go func() {
		_, body := d.post(t, "/v1/completions", withParams(300, params), "X-Request-Id", "b")
		first <- at(decode(t, body), "choices", 0, "text")
	}()
	time.Sleep(50 * time.Millisecond)
	prefillAs(t, p, 300, "b")
	if got := <-first; got != want {
		t.Errorf("the leg that decodes first: %v, want %v", got, want)
	}
}

// Two requests under one id get each other's cache: status 200, and a wrong text.
func TestRequestsUnderOneIDGetEachOthersCache(t *testing.T) {
	alone, p, d := start(t, fast()), start(t, connectedBy("nixl-push")), start(t, connectedBy("nixl-push"))
	_, whole := alone.post(t, "/v1/completions", askPushed+longPrompt(300)+`}`)
	prefillAs(t, p, 200, "same")
	params := prefillAs(t, p, 300, "same")
	code, body := d.post(t, "/v1/completions", withParams(300, params), "X-Request-Id", "same")
	if got := at(decode(t, body), "choices", 0, "text"); code != 200 || got == at(decode(t, whole), "choices", 0, "text") {
		t.Errorf("%d %s", code, body)
	}
}

// A leg that decodes and that no prompt comes for waits for good, and its blocks are lost when its client leaves.
func TestLegWithoutAPromptWaitsAndStrandsItsBlocks(t *testing.T) {
	p, d := start(t, connectedBy("nixl-push")), start(t, connectedBy("nixl-push"))
	params := prefillAs(t, p, 300, "a")
	for name, ask := range map[string]struct{ id, body string }{
		"another id":  {"b", withParams(300, params)},
		"two answers": {"a", strings.Replace(withParams(300, params), `"seed":1`, `"n":2`, 1)},
	} {
		before := usage(t, d)
		ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if resp, err := d.try(ctx, "/v1/completions", ask.body, "X-Request-Id", ask.id); err == nil {
			resp.Body.Close()
			t.Errorf("%s: status %d", name, resp.StatusCode)
		}
		leave()
		eventually(t, name+": blocks that stay in use", func() bool { return usage(t, d) > before })
		if code, body := d.post(t, "/v1/completions", askPushed+longPrompt(300)+`}`); code != 200 {
			t.Errorf("%s: then %d %s", name, code, body)
		}
	}
}

// A dead engine is noticed by those that have not met it: 500. The others wait.
func TestDeadEngineIsNoticedByStrangersOnly(t *testing.T) {
	p, friend, stranger := start(t, connectedBy("nixl-push")), start(t, connectedBy("nixl-push")), start(t, connectedBy("nixl-push"))
	if code, body := friend.post(t, "/v1/completions", withParams(300, prefillAs(t, p, 300, "a")), "X-Request-Id", "a"); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	params := prefillAs(t, p, 300, "b")
	p.Restart(time.Hour)
	if code, body := stranger.post(t, "/v1/completions", withParams(300, params), "X-Request-Id", "b"); code != 500 {
		t.Errorf("a stranger: %d %s", code, body)
	}
	ctx, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer leave()
	if resp, err := friend.try(ctx, "/v1/completions", withParams(300, params), "X-Request-Id", "b"); err == nil {
		resp.Body.Close()
		t.Errorf("a friend: status %d", resp.StatusCode)
	}
}

// Each of these members is looked up without a check: an engine that lacks one dies.
func TestMissingMembersEndAnEngineThatIsPushedTo(t *testing.T) {
	for _, name := range []string{"remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"} {
		t.Run(name, func(t *testing.T) {
			p, d := start(t, connectedBy("nixl-push")), start(t, connectedBy("nixl-push"))
			params := strings.Replace(prefillAs(t, p, 300, "a"), `"`+name+`":`, `"x":`, 1)
			if resp, err := d.try(t.Context(), "/v1/completions", withParams(300, params), "X-Request-Id", "a"); err == nil {
				if resp.Body.Close(); resp.StatusCode != 500 {
					t.Errorf("status %d", resp.StatusCode)
				}
			}
			eventually(t, "the engine to be dead", func() bool { return d.Lives() > 1 || d.Stats() == nil })
		})
	}
}

// A cache that is read for another prompt than its own gives another text, too.
func TestCacheOfAnotherPromptGivesAWrongText(t *testing.T) {
	alone, p, d := start(t, fast()), start(t, connected()), start(t, connected())
	_, whole := alone.post(t, "/v1/completions", askPushed+longPrompt(300)+`}`)
	code, body := d.post(t, "/v1/completions", withParams(300, prefill(t, p, 310)))
	if got := at(decode(t, body), "choices", 0, "text"); code != 200 || got == at(decode(t, whole), "choices", 0, "text") {
		t.Errorf("%d %s", code, body)
	}
}

func TestUnknownConnectorIsRefused(t *testing.T) {
	if err := connectedBy("moriio").Validate(); err == nil {
		t.Error("accepted")
	}
	if err := connectedBy("nixl-push").Validate(); err != nil {
		t.Error(err)
	}
}
