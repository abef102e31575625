package tokenizer_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

func parityOf(t *testing.T, p *tokenizer.Pool) tokenizer.ParityStatus {
	t.Helper()
	list := p.Parity()
	if len(list) != 1 || list[0].Model != model {
		t.Fatalf("Parity() = %+v", list)
	}
	return list[0]
}

// prove lets the engine count as many prompt tokens as were encoded, until that is believed.
func prove(t *testing.T, p *tokenizer.Pool, enc *tokenizer.Encoding) {
	t.Helper()
	for range 8 {
		p.Observe(t.Context(), tokenizer.Observation{Pool: model, Encoding: enc, PromptTokens: enc.Tokens, CachedTokens: -1})
	}
	if s := parityOf(t, p); s.State != "proven" {
		t.Fatalf("state is %q after eight equal counts", s.State)
	}
}

func TestParityByTheEnginesCount(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	pool := start(t, tokenizer.DefaultConfig())
	enc := encode(t, pool, `{"prompt":"The quick brown fox"}`, rep)
	if s := parityOf(t, pool); s.State != "unproven" {
		t.Errorf("state is %q before anything was compared", s.State)
	}
	prove(t, pool, enc)
	pool.Observe(t.Context(), tokenizer.Observation{Pool: model, Encoding: enc, PromptTokens: enc.Tokens + 3, CachedTokens: -1, HandedOff: true})
	if s := parityOf(t, pool); s.State != "proven" || s.Unequal != 0 {
		t.Errorf("a count of ids that were handed over was compared: %+v", s)
	}
	pool.Observe(t.Context(), tokenizer.Observation{Pool: model, Encoding: enc, PromptTokens: enc.Tokens + 3, CachedTokens: -1})
	if s := parityOf(t, pool); s.State != "suspect" || s.Unequal != 1 || s.Position != enc.Tokens {
		t.Errorf("after another count: %+v, want suspect at %d", s, enc.Tokens)
	}
	if again := encode(t, pool, `{"prompt":"The quick brown fox"}`, rep); again.Source != tokenizer.SourceTokenize {
		t.Errorf("what was cached before the mismatch is still used: %s", again.Source)
	}
	pool.ClearParity(model)
	if s := parityOf(t, pool); s.State != "unproven" {
		t.Errorf("state is %q after it was cleared", s.State)
	}
}

// Early answers are compared too, by what was completed behind them; a wrong join bars joining,
// not the model.
func TestParityOfEarlyAnswers(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	pool := start(t, tokenizer.DefaultConfig())
	k := &talker{dice: rand.New(rand.NewPCG(1, 1))}
	for range 14 {
		k.turn()
		enc := encode(t, pool, k.body(), rep)
		pool.WaitIdle()
		if !enc.Partial {
			continue
		}
		whole := encode(t, pool, k.body(), rep)
		pool.Observe(t.Context(), tokenizer.Observation{Pool: model, Encoding: enc, PromptTokens: whole.Tokens, CachedTokens: -1})
		if tokenizer.Derived(whole) {
			was := pool.Broken()
			pool.Observe(t.Context(), tokenizer.Observation{Pool: model, Encoding: enc, PromptTokens: whole.Tokens + 1, CachedTokens: -1})
			if s := parityOf(t, pool); s.State == "suspect" || s.Equal == 0 || pool.Broken() == was {
				t.Errorf("%+v with %d classes barred after %d, want no suspicion and one more", s, pool.Broken(), was)
			}
			return
		}
	}
	t.Error("no answer was joined")
}

func TestParityByStoredBlocks(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	stored := func(tokens []uint32) *kvblock.Stored {
		return &kvblock.Stored{Tokens: slices.Clone(tokens), BlockSize: 16, Hashes: make([]kvblock.EngineHash, len(tokens)/16)}
	}
	t.Run("equal", func(t *testing.T) {
		pool := start(t, tokenizer.DefaultConfig())
		enc := encode(t, pool, `{"prompt":`+quoted(strings.Repeat("The quick brown fox. ", 30))+`}`, rep)
		pool.Routed(model, enc, 3, "", 0)
		pool.ObserveStored(model, 3, stored(enc.IDs[:32]))
		if s := parityOf(t, pool); s.BlocksEqual != 1 || s.BlocksMissed != 0 {
			t.Errorf("%+v, want one equal block", s)
		}
	})
	t.Run("another template", func(t *testing.T) {
		pool := start(t, tokenizer.DefaultConfig())
		for i := range 10 {
			enc := encode(t, pool, `{"prompt":`+quoted(strings.Repeat("The quick brown fox. ", 30+i))+`}`, rep)
			pool.Routed(model, enc, 3, "", 0)
			theirs := slices.Clone(enc.IDs[:32])
			theirs[5]++
			pool.ObserveStored(model, 3, stored(theirs))
			pool.Expire(model)
			pool.ObserveStored(model, 3, stored(theirs))
		}
		if s := parityOf(t, pool); s.State != "suspect" || s.Position != 5 {
			t.Errorf("%+v, want suspect at 5", s)
		}
	})
	t.Run("prompts that no engine computed", func(t *testing.T) {
		pool := start(t, tokenizer.DefaultConfig())
		for i := range 20 {
			enc := encode(t, pool, `{"prompt":`+quoted(strings.Repeat("The quick brown fox. ", 30+i))+`}`, rep)
			pool.Routed(model, enc, 3, "", 0)
			pool.Withdrawn(model, enc, 3, "")
			pool.ObserveStored(model, 3, stored(slices.Repeat([]uint32{uint32(i)}, 16)))
			pool.Expire(model)
			pool.ObserveStored(model, 3, stored(slices.Repeat([]uint32{uint32(i)}, 16)))
		}
		if s := parityOf(t, pool); s.State != "unproven" || s.BlocksMissed != 0 {
			t.Errorf("%+v, want no suspicion", s)
		}
	})
	t.Run("others' prompts", func(t *testing.T) {
		pool := start(t, tokenizer.DefaultConfig())
		enc := encode(t, pool, `{"prompt":`+quoted(strings.Repeat("The quick brown fox. ", 30))+`}`, rep)
		pool.Routed(model, enc, 3, "", 0)
		for i := range 50 {
			pool.ObserveStored(model, 3, stored(slices.Repeat([]uint32{uint32(i)}, 16)))
		}
		pool.ObserveStored(model, 3, stored(enc.IDs[:16]))
		if s := parityOf(t, pool); s.State != "unproven" || s.BlocksEqual != 1 {
			t.Errorf("%+v, want one equal block and no suspicion", s)
		}
	})
}

func TestHandoff(t *testing.T) {
	rep := serve(t, "a", &simulated{render: true})
	rep.Version = "0.28.0"
	cfg := tokenizer.DefaultConfig()
	cfg.Models = map[string]tokenizer.ModelConfig{"off": {Handoff: "off"}}
	pool := start(t, cfg)
	ask := func(body string, api prompt.API) (tokenizer.Request, *tokenizer.Encoding) {
		p := read(t, body)
		p.API = api
		req := request(p, rep)
		req.NeedFull = true
		enc, err := pool.Encode(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return req, enc
	}
	// decide asks until the answer is not the sample that goes as text
	decide := func(req tokenizer.Request, enc *tokenizer.Encoding) tokenizer.Handoff {
		for {
			if h := pool.Handoff(t.Context(), req, enc, rep); h.Reason != "sample" {
				return h
			}
		}
	}
	req, enc := ask(`{"prompt":"The quick"}`, prompt.APICompletions)
	if h := decide(req, enc); h.Form != tokenizer.HandoffNone || h.Reason != "unproven" {
		t.Errorf("before it is proven: %s (%s)", h.Form, h.Reason)
	}
	prove(t, pool, enc)
	if h := decide(req, enc); h.Form != tokenizer.HandoffAsPrompt || !slices.Equal(h.IDs, enc.IDs) {
		t.Errorf("proven: %s (%s)", h.Form, h.Reason)
	}
	for body, reason := range map[string]string{
		`{"prompt":"x","echo":true}`: "echo", `{"prompt":"x","suffix":"y"}`: "suffix", `{"prompt":"x","prompt_logprobs":0}`: "prompt_logprobs",
		`{"prompt":"x","return_token_ids":true}`: "return_token_ids", `{"prompt":"x","truncate_prompt_tokens":3}`: "truncated",
		`{"prompt":[1,2]}`: "no_ids", `{"prompt":["a","b"]}`: "shape",
	} {
		req, enc := ask(body, prompt.APICompletions)
		if h := decide(req, enc); h.Form != tokenizer.HandoffNone || h.Reason != reason {
			t.Errorf("%s: %s (%s), want none (%s)", body, h.Form, h.Reason, reason)
		}
	}
	if req, enc := ask(`{"prompt":"x","echo":false,"suffix":null}`, prompt.APICompletions); decide(req, enc).Form != tokenizer.HandoffAsPrompt {
		t.Error("echo false and suffix null keep the ids back")
	}
	if req, enc := ask(`{"messages":[{"role":"user","content":"x"}]}`, prompt.APIChat); decide(req, enc).Reason != "shape" {
		t.Error("chat is handed over although only completions are")
	}
	off := req
	off.Pool = "off"
	if h := decide(off, enc); h.Reason != "off" {
		t.Errorf("a model that is off: %s (%s)", h.Form, h.Reason)
	}
}

// Chat ids are handed over only to a replica that has shown to use them.
func TestHandoffOnChatIsProbed(t *testing.T) {
	for _, takes := range []bool{true, false} {
		r := &simulated{render: true, takesIDs: takes}
		rep := serve(t, "a", r)
		rep.Version = "0.28.0"
		cfg := tokenizer.DefaultConfig()
		cfg.Handoff = tokenizer.HandoffAll
		pool := start(t, cfg)
		req := request(read(t, `{"messages":[{"role":"user","content":"The quick brown fox"}]}`), rep)
		req.NeedFull = true
		enc, err := pool.Encode(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		prove(t, pool, enc)
		for range 3 {
			pool.Handoff(t.Context(), req, enc, rep) // the first one starts the probe
		}
		eventually(t, "the probe", func() bool { return r.calls("/v1/chat/completions") == 1 })
		if !takes {
			for range 100 {
				if h := pool.Handoff(t.Context(), req, enc, rep); h.Form != tokenizer.HandoffNone {
					t.Fatal("handed over to a replica that ignores the ids")
				}
			}
			continue
		}
		eventually(t, "the handoff", func() bool {
			h := pool.Handoff(t.Context(), req, enc, rep)
			return h.Form == tokenizer.HandoffAsTransfer && slices.Equal(h.IDs, enc.IDs)
		})
	}
}

func TestPublicForms(t *testing.T) {
	r := &simulated{}
	rep := serve(t, "a", r)
	pool := start(t, tokenizer.DefaultConfig())
	batch := make([]string, 20)
	for i := range batch {
		batch[i] = quoted(strings.Repeat("fox ", i+1))
	}
	enc, err := pool.Tokenize(t.Context(), request(read(t, `{"prompt":[`+strings.Join(batch, ",")+`]}`), rep))
	if err != nil || len(enc.Batch) != 20 {
		t.Fatalf("Tokenize() = %+v, %v", enc, err)
	}
	texts, err := pool.DetokenizeBatch(t.Context(), []*replica.Replica{rep}, model, enc.Batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range texts {
		if want := "<|begin|>" + strings.Repeat("fox ", i+1); text != want {
			t.Errorf("text %d is %q, want %q", i, text, want)
		}
	}
	calls := r.calls("/")
	if _, err := pool.DetokenizeBatch(t.Context(), []*replica.Replica{rep}, model, enc.Batch); err != nil || r.calls("/") != calls {
		t.Errorf("texts were asked for again: %d calls, %v", r.calls("/")-calls, err)
	}
	r.SetFaults(enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500}})
	if _, err := pool.Tokenize(t.Context(), request(read(t, `{"prompt":"new"}`), rep)); err == nil || !strings.Contains(err.Error(), "no tokenizer is available") {
		t.Errorf("Tokenize() with all tokenizers down: %v", err)
	}
}
