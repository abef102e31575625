package router_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
)

// bootstrap is a bootstrap server that answers /query with text, or as answer says.
type bootstrap struct {
	*httptest.Server
	text   atomic.Pointer[string]
	asked  atomic.Int64
	answer http.HandlerFunc // nil: the text
}

func newBootstrap(t *testing.T, answer http.HandlerFunc) *bootstrap {
	b := &bootstrap{answer: answer}
	b.knows("engine-1")
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.asked.Add(1)
		if r.Method != http.MethodGet || r.URL.Path != "/query" || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %s %v", r.Method, r.URL.Path, r.Header)
		}
		if b.answer != nil {
			b.answer(w, r)
			return
		}
		io.WriteString(w, *b.text.Load())
	}))
	t.Cleanup(b.Close)
	return b
}

// knows makes an engine the one of rank 0.
func (b *bootstrap) knows(engine string) {
	text := `{"1":{"engine_id":"another rank"},"0":{"engine_id":"` + engine + `","worker_addr":{"0":{"0":"tcp://10.0.0.7:4711"}}}}`
	b.text.Store(&text)
}

// kept is the answer of an engine that keeps a prompt of 6,000 tokens for another one: it passes nothing on.
func kept(cached string) http.HandlerFunc {
	return text(200, `{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":6000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":`+cached+`}},"kv_transfer_params":null}`)
}

func TestMooncakeLegsMeetByTheNameOfTheirTransfer(t *testing.T) {
	b := newBootstrap(t, nil)
	p := newPairAt(t, "mooncake", b.URL, kept("0"), nil)
	names := map[string]bool{}
	for i, engine := range []string{"engine-1", "engine-1", "engine-2"} { // the process restarts before the third
		b.knows(engine)
		to := &client{}
		must(t, p.router.Serve(t.Context(), completion(7+i, ""), to))
		if !strings.Contains(to.body.String(), "decode") {
			t.Fatalf("request %d: %s", i, to.body.String())
		}
		lead, own := p.legs[0][i], p.legs[1][i]
		if lead.Params.Transfer == "" || !lead.Params.Decode || lead.Params.Prefill || lead.Params.Bootstrap+lead.Params.Engine != "" || lead.Max != 1 {
			t.Errorf("request %d: the leg that prefills has %+v", i, lead.Params)
		}
		if own.Params.Transfer != lead.Params.Transfer || own.Params.Decode || !own.Params.Prefill || own.Params.Bootstrap != b.URL || own.Params.Engine != engine {
			t.Errorf("request %d: the leg that decodes has %+v, want the transfer %s of %s at %s", i, own.Params, lead.Params.Transfer, engine, b.URL)
		}
		names[lead.Params.Transfer] = true
	}
	if len(names) != 3 {
		t.Errorf("the transfers are called %v", names)
	}
	if got := p.counted("kvpilot.router.transfers"); got != "3 read" {
		t.Errorf("transfers: %s", got)
	}
	p.end()
}

// An engine that decodes counts all that it read as cached. The record has what the engine that computed the prompt found.
func TestMooncakeCachedTokensAreThoseOfTheEngineThatPrefills(t *testing.T) {
	b := newBootstrap(t, nil)
	p := newPairAt(t, "mooncake", b.URL, kept("48"), text(200, `{"id":"x","choices":[{"index":0,"text":"decode","finish_reason":"stop"}],"usage":{"prompt_tokens":6000,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":6000}}}`))
	must(t, p.router.Serve(t.Context(), completion(7, ""), &client{}))
	if o := p.last(); o.CachedTokens != 48 {
		t.Errorf("recorded %+v", o)
	}
	p.end()
}

// Without the id of the other engine's process nothing can be read: the request is served whole, and the blocks count as pinned.
func TestMooncakeEngineThatCannotBeFound(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"an error":          text(500, `{}`),
		"not found":         text(404, `{"detail":"Not Found"}`),
		"nothing":           text(200, ``),
		"no JSON":           text(200, `{"0":{"engine_id":"a`),
		"another form":      text(200, `{"0":["engine"]}`),
		"no engine":         text(200, `{}`),
		"another rank":      text(200, `{"1":{"engine_id":"a"}}`),
		"an id that is odd": text(200, `{"0":{"engine_id":7}}`),
		"a long id":         text(200, `{"0":{"engine_id":"`+strings.Repeat("a", 4096)+`"}}`),
		"half an answer":    cut,
		"too much":          text(200, `{"0":{"engine_id":"a"},"x":"`+strings.Repeat("a", 2<<20)+`"}`),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBootstrap(t, answer)
			p := newPairAt(t, "mooncake", b.URL, kept("0"), nil)
			to := &client{}
			must(t, p.router.Serve(t.Context(), completion(7, ""), to))
			if !strings.Contains(to.body.String(), "whole") || p.counted("kvpilot.router.prefills") != "1 no_cache" {
				t.Errorf("%s, prefills %s, engines were asked for %q", to.body.String(), p.counted("kvpilot.router.prefills"), p.parts())
			}
			p.router.SetLegs(20*time.Second, time.Millisecond)
			p.end()
		})
	}
}

func TestMooncakeCopiesAPrefix(t *testing.T) {
	b := newBootstrap(t, nil)
	held := strings.Replace(prefilled(&leg{Prompt: []int{7}}, 4097), `"cached_tokens":0`, `"cached_tokens":4096`, 1)
	held, _, _ = strings.Cut(held, `,"kv_transfer_params"`)
	p := newPairAt(t, "mooncake", b.URL, text(200, held+`,"kv_transfer_params":null}`), nil)
	if end, sent := p.copied(4096, time.Second); end != chooser.Copied || !sent {
		t.Fatalf("the copy ended with %v, target asked %v", end, sent)
	}
	source, target := p.legs[0][0], p.legs[1][0]
	if source.Params.Transfer == "" || target.Params.Transfer != source.Params.Transfer || target.Params.Engine != "engine-1" || target.Params.Bootstrap != b.URL || len(target.Prompt) != 4097 {
		t.Errorf("the legs have %+v and %+v", source.Params, target.Params)
	}
	if got := p.counted("kvpilot.router.copies"); got != "1 done" {
		t.Errorf("counted %s", got)
	}
	p.end()
}
