package tokenizer_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// A body that came before needs none of its messages to be found again.
func TestABodySeenBeforeIsFoundByItsDigest(t *testing.T) {
	long := strings.Repeat("all work and no play ", 300)
	for route, body := range map[openai.Route]string{
		openai.RouteChat:        `{"model":"m","messages":[{"role":"system","content":"` + long + `"},{"role":"user","content":"hi"}]}`,
		openai.RouteCompletions: `{"model":"m","prompt":"` + long + `"}`,
		openai.RouteMessages:    `{"model":"m","system":"` + long + `","messages":[{"role":"user","content":"hi"}]}`,
		openai.RouteResponses:   `{"model":"m","instructions":"` + long + `","input":"hi"}`,
	} {
		t.Run(route.String(), func(t *testing.T) {
			pool := start(t, tokenizer.DefaultConfig())
			rep := serve(t, "a", &simulated{})
			memory := openai.NewMemory(1 << 20)
			var ids []uint32
			for sight := range 4 {
				req, err := memory.Read(openai.Params{Route: route, Body: []byte(body)})
				if err != nil {
					t.Fatal(err)
				}
				req.Prompt.Model = model
				if sight == 3 {
					req.Prompt.Messages, req.Prompt.Text = nil, "" // only the digest is left
				}
				enc, err := pool.Encode(context.Background(), request(&req.Prompt, rep))
				if err != nil {
					t.Fatal(err)
				}
				if sight == 0 {
					ids = enc.IDs
					continue
				}
				if !slices.Equal(enc.IDs, ids) || enc.Source != tokenizer.SourceExactCache || !enc.Exact {
					t.Errorf("sight %d: %d ids from %s, want %d from the exact cache", sight, len(enc.IDs), enc.Source, len(ids))
				}
			}
		})
	}
}

// The same bytes are another prompt for another model, other weights or a cut body.
func TestADigestIsNotAllOfTheKey(t *testing.T) {
	pool := start(t, tokenizer.DefaultConfig())
	rep := serve(t, "a", &simulated{})
	text := func(change func(*prompt.Prompt)) *prompt.Prompt {
		p := &prompt.Prompt{Kind: prompt.KindText, API: prompt.APICompletions, Model: model, Text: "The quick brown fox", Digest: prompt.Digest{Hi: 1, Lo: 2}}
		change(p)
		return p
	}
	for range 3 { // tokenized, found by its text, found by its digest
		if _, err := pool.Encode(context.Background(), request(text(func(*prompt.Prompt) {}), rep)); err != nil {
			t.Fatal(err)
		}
	}
	other := *rep
	other.Models = []replica.Model{{ID: model, Root: "/other", MaxLen: 131072}, {ID: "n", Root: "/weights", MaxLen: 131072}}
	for name, req := range map[string]tokenizer.Request{
		"another model":  request(text(func(p *prompt.Prompt) { p.Model, p.Text = "n", "Hello" }), &other),
		"other weights":  request(text(func(p *prompt.Prompt) { p.Text = "Hello" }), &other),
		"a cut body":     request(text(func(p *prompt.Prompt) { p.Partial, p.Text = true, strings.Repeat("Hello ", 40) }), rep),
		"another body":   request(text(func(p *prompt.Prompt) { p.Digest.Lo++; p.Text = "Hello" }), rep),
		"no digest":      request(text(func(p *prompt.Prompt) { p.Digest = prompt.Digest{}; p.Text = "Hello" }), rep),
		"the known body": request(text(func(p *prompt.Prompt) { p.Text = "Hello" }), rep),
	} {
		enc, err := pool.Encode(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		known, _ := pool.Encode(context.Background(), request(text(func(*prompt.Prompt) {}), rep))
		if same := slices.Equal(enc.IDs, known.IDs); same != (name == "the known body") {
			t.Errorf("%s: found by the digest: %v", name, same)
		}
	}
}
