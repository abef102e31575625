package tokenizer_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/tokenizertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is what the test tokenizers are trained on: line ends and spaces that merge.
var sample = strings.Repeat("The quick brown fox jumps over the lazy dog.\n\nHello, world!\nassistant\nuser\nsystem\n"+
	"And then, after all that was said and done:\n\n  - one\n  - two\n\nthe end. assistant: user: \n\n\n", 40)

var bpe = tokenizertest.Train(sample, 300, tokenizertest.Specials...)

const model = "m"

// serve starts a fake replica and returns the router's view of it.
func serve(t *testing.T, id string, r *tokenizertest.Replica) *replica.Replica {
	t.Helper()
	if r.BPE == nil {
		r.BPE = bpe
	}
	if r.Template == nil {
		r.Template = tokenizertest.Templates["chatml"]
	}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	version := "0.17.0"
	if r.Render {
		version = "0.24.0"
	}
	if r.Native {
		version = "0.33.0"
	}
	return &replica.Replica{
		ID: replica.ID(id), URL: srv.URL, State: replica.StateReady, Version: version, RustFrontend: r.Rust,
		Models: []replica.Model{{ID: model, Root: "/weights", MaxLen: 131072}},
	}
}

// start makes a pool and runs it for the time of the test.
func start(t *testing.T, cfg tokenizer.Config) *tokenizer.Pool {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	p := tokenizer.New(cfg, tokenizer.Params{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return p
}

// read makes a prompt from a body as package openai does, well enough for these tests.
func read(t testing.TB, body string) *prompt.Prompt {
	t.Helper()
	p := &prompt.Prompt{Model: model, Body: []byte(body)}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(p.Body, &all); err != nil {
		return p
	}
	for _, name := range []string{"tools", "tool_choice", "chat_template", "chat_template_kwargs", "add_generation_prompt",
		"continue_final_message", "add_special_tokens", "documents", "reasoning_effort", "mm_processor_kwargs",
		"media_io_kwargs", "truncation_side", "temperature", "truncate_prompt_tokens"} {
		if v, ok := all[name]; ok && name != "temperature" {
			p.Fields = append(p.Fields, prompt.Field{Name: name, Value: v})
		}
	}
	_ = json.Unmarshal(all["truncate_prompt_tokens"], &p.Truncate) // absent is 0
	var messages []json.RawMessage
	if json.Unmarshal(all["messages"], &messages) == nil && len(messages) > 0 {
		p.Kind, p.API = prompt.KindChat, prompt.APIChat
		for _, m := range messages {
			p.Messages = append(p.Messages, m)
			p.HasMedia = p.HasMedia || strings.Contains(string(m), "image_url")
		}
		return p
	}
	p.API = prompt.APICompletions
	var ids []uint32
	var lists [][]uint32
	switch raw := all["prompt"]; {
	case json.Unmarshal(raw, &p.Text) == nil && p.Text != "":
		p.Kind = prompt.KindText
	case json.Unmarshal(raw, &p.Texts) == nil && len(p.Texts) > 0:
		p.Kind, p.Text = prompt.KindBatch, p.Texts[0]
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		p.Kind, p.IDs, p.Texts = prompt.KindIDs, ids, nil
	case json.Unmarshal(raw, &lists) == nil && len(lists) > 0:
		p.Kind, p.Batch, p.IDs, p.Texts = prompt.KindBatchIDs, lists, lists[0], nil
	}
	return p
}

// quoted is s as a JSON string.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string always marshals
	return string(b)
}

// eventually polls until ok or fails the test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(2 * time.Millisecond) // polling a real socket's effects
	}
}

// request asks for a prompt's encoding by the replicas.
func request(p *prompt.Prompt, rs ...*replica.Replica) tokenizer.Request {
	return tokenizer.Request{Prompt: p, Replicas: rs, Pool: model}
}
