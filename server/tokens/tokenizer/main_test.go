package tokenizer_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is what the test tokenizers are trained on: line ends and spaces that merge.
var sample = strings.Repeat("The quick brown fox jumps over the lazy dog.\n\nHello, world!\nassistant\nuser\nsystem\n"+
	"And then, after all that was said and done:\n\n  - one\n  - two\n\nthe end. assistant: user: \n\n\n", 40)

var bpe = train(sample, 300, specials...)

const model = "m"

// simulated is a simulated replica with the test's tokenizer and one of the test's templates.
type simulated struct {
	template template
	// render serves the render routes, native those of /v1/messages and /v1/responses too; these give nativeIDs.
	render, native bool
	nativeIDs      []uint32
	// takesIDs uses the ids in kv_transfer_params on the chat route.
	takesIDs bool
	// faults are those from the start.
	faults enginesim.Faults

	*enginesim.Engine
	encoded atomic.Int64 // ids that the tokenizer gave
}

// Encode implements enginesim.Vocabulary.
func (r *simulated) Encode(text string, addSpecial bool) []uint32 {
	ids := bpe.Encode(text)
	if addSpecial && text != "" {
		ids = append(bpe.Encode("<|begin|>"), ids...)
	}
	r.encoded.Add(int64(len(ids)))
	return ids
}

// Decode implements enginesim.Vocabulary.
func (r *simulated) Decode(ids []uint32) string { return bpe.Decode(ids) }

// Render implements enginesim.Vocabulary.
func (r *simulated) Render(c vocab.Chat) (vocab.Rendered, error) {
	if r.nativeIDs != nil {
		return vocab.Rendered{IDs: r.nativeIDs}, nil
	}
	if err := c.Validate(); err != nil {
		return vocab.Rendered{}, err
	}
	return vocab.Rendered{IDs: r.Encode(r.template(&c), false)}, nil
}

// calls counts the requests so far to paths that begin with one of these.
func (r *simulated) calls(paths ...string) int {
	n := 0
	for _, each := range r.Requests() {
		for _, path := range paths {
			if strings.HasPrefix(each.Path, path) {
				n++
			}
		}
	}
	return n
}

// serve starts a simulated replica and returns the router's view of it.
func serve(t testing.TB, id string, r *simulated) *replica.Replica {
	t.Helper()
	if r.template == nil {
		r.template = chatMLTemplate
	}
	cfg := enginesim.DefaultConfig()
	cfg.Models, cfg.Vocabulary, cfg.Core.Timing.Speed = []string{model, "n"}, r, 1000
	cfg.Version = "0.17.0"
	switch {
	case r.native:
		cfg.Version = "0.33.0"
	case r.render:
		cfg.Version = "0.24.0"
	}
	view := &replica.Replica{
		ID: replica.ID(id), State: replica.StateReady, Version: cfg.Version,
		Models: []replica.Model{{ID: model, Root: "/weights", MaxLen: 131072}},
	}
	if r.takesIDs {
		cfg.Version = "0.28.0"
	}
	view.URL = simulate(t, cfg, r)
	return view
}

// simulate runs an engine until the test ends and returns its URL.
func simulate(t testing.TB, cfg enginesim.Config, r *simulated) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	engine, err := enginesim.New(cfg, enginesim.Params{HTTP: ln})
	if err != nil {
		t.Fatal(err)
	}
	r.Engine = engine
	engine.SetFaults(r.faults)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the simulated replica: %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

// start makes a pool and runs it for the time of the test.
func start(t *testing.T, cfg tokenizer.Config) *tokenizer.Pool {
	t.Helper()
	return startWith(t, cfg, tokenizer.Params{})
}

func startWith(t *testing.T, cfg tokenizer.Config, params tokenizer.Params) *tokenizer.Pool {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	p := tokenizer.New(cfg, params)
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
	return tokenizer.Request{Prompt: p, Replicas: rs, Pool: model, Keep: 1 << 20}
}
