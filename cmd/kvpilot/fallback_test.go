package main

import (
	"net/http"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// Each shape of prompt that the founding documents list is answered as the engine answers it, and
// leaves word of how its ids were found: in a counter and on its spans.
func TestEveryShapeOfPromptIsAccountedFor(t *testing.T) {
	t.Parallel()
	c, args := startCollector(t)
	f := startFleet(t, fleetOptions{args: args})
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	rows := []struct {
		name, path, body string
		source, reason   string // of the ids
	}{
		{"chat", chat, `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"tell me a story about somebody"}]}`, "render", ""},
		{"completion", completions, `{"model":"sim","max_tokens":2,"prompt":"once upon a time"}`, "render", ""},
		{"empty messages and a prompt", completions, `{"model":"sim","max_tokens":2,"messages":[],"prompt":"hi there"}`, "render", ""},
		{"null messages and a prompt", completions, `{"model":"sim","max_tokens":2,"messages":null,"prompt":"hello there"}`, "render", ""},
		{"batch", completions, `{"model":"sim","max_tokens":2,"prompt":["a tale","b tale"]}`, "render", ""},
		{"ids", completions, `{"model":"sim","max_tokens":2,"prompt":[11,12,13,14]}`, "body", ""},
		{"image only", chat, `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`, "render", ""},
		{"empty list of messages", chat, `{"model":"sim","messages":[]}`, "none", "no_prompt"},
		{"empty prompt", completions, `{"model":"sim","prompt":""}`, "none", "no_prompt"},
		{"no prompt", completions, `{"model":"sim"}`, "none", "no_prompt"},
		{"the tokenizers are down", completions, `{"model":"sim","max_tokens":2,"prompt":"words that nobody counts"}`, "none", "status"},
	}
	counted := func(source, reason string) float64 {
		return f.metric("kvpilot_tokenizer_encodings_total", `source="`+source+`"`, `reason="`+reason+`"`)
	}
	for i, row := range rows {
		if row.name == "the tokenizers are down" {
			for _, e := range f.engines {
				e.SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/tokenize", "/v1/completions/render", "/v1/chat/completions/render"}}, AnswerFaults: enginesim.AnswerFaults{Status: http.StatusInternalServerError}})
			}
		}
		_, parent := newTrace(900 + i)
		before := counted(row.source, row.reason)
		got := f.post(row.path, row.body, "traceparent", parent)
		if direct := postTo(t, f.urls[0]+row.path, row.body); got.status != direct.status {
			t.Errorf("%s: status %d, the engine itself says %d", row.name, got.status, direct.status)
		}
		if after := counted(row.source, row.reason); after != before+1 {
			t.Errorf("%s: counted %v times as %s (%s), want once", row.name, after-before, row.source, row.reason)
		}
	}
	for i, row := range rows { // the exporter sends in batches
		id, _ := newTrace(900 + i)
		spans := f.traceOf(c, id).named("kvpilot.tokenize")
		if len(spans) != 1 {
			t.Errorf("%s: %d spans for the ids", row.name, len(spans))
			continue
		}
		if got := attributes(spans[0].GetAttributes())["kvpilot.tokenizer.source"]; got != row.source {
			t.Errorf("%s: the span says %q, want %q", row.name, got, row.source)
		}
		e, fell := event(spans[0], "kvpilot.fallback")
		if fell != (row.source == "none") || fell && e["kvpilot.reason"] != row.reason {
			t.Errorf("%s: the span notes the fallback %v, want the reason %q", row.name, e, row.reason)
		}
	}
}

// What an engine computed for an adapter is found again for the adapter, and for nobody else: keys
// made of its events (with the adapter's name) equal those made of the ids of a request.
func TestAnAdaptersBlocksAreItsOwn(t *testing.T) {
	f := startFleet(t, fleetOptions{engine: func(_ int, c *enginesim.Config) { c.Adapters = []string{"sql"} }})
	ask := func(model string) answer {
		a := f.post("/v1/chat/completions", `{"model":"`+model+`","max_tokens":2,"messages":[{"role":"user","content":"`+longText+`"}]}`)
		if a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", model, a.status, a.body)
		}
		return a
	}
	if got := ask("sql").header.Get("X-Kvpilot-Overlap-Tokens"); got != "0" {
		t.Errorf("a prompt that nobody has: %s tokens overlap", got)
	}
	f.eventually("the engine's events are in the index", func() bool {
		return ask("sql").header.Get("X-Kvpilot-Overlap-Tokens") != "0"
	})
	if got := ask("sim").header.Get("X-Kvpilot-Overlap-Tokens"); got != "0" {
		t.Errorf("the base model is said to hold %s tokens of the adapter's", got)
	}
}

// longText is several blocks of words.
const longText = "the quick brown fox jumps over the lazy dog and then the lazy dog looks at the quick brown fox for a while before " +
	"both of them go to sleep under the old tree at the end of the long road that leads from the village to the sea"
