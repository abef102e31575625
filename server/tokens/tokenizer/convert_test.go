package tokenizer_test

import (
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// A request in another format has the ids of the chat request that the engine makes of it.
func TestOtherFormatsAreEncodedAsTheirChatForm(t *testing.T) {
	for _, render := range []bool{false, true} {
		rep := serve(t, "a", &simulated{render: render})
		pool := start(t, tokenizer.DefaultConfig())
		want := encode(t, pool, `{"messages":[{"role":"system","content":"Be kind"},{"role":"user","content":"Hello"}]}`, rep).IDs
		messages := read(t, `{"system":"Be kind","max_tokens":3,"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]}`)
		messages.API = prompt.APIMessages
		response := read(t, `{"prompt":"Hello"}`)
		response.API, response.Body = prompt.APIResponses, []byte(`{"input":"Hello","instructions":"Be kind"}`)
		stored := read(t, `{"prompt":"Hello"}`)
		stored.API, stored.Body = prompt.APIResponses, []byte(`{"input":"Hello","previous_response_id":"r"}`)
		for _, p := range []*prompt.Prompt{messages, response} {
			enc, err := pool.Encode(t.Context(), request(p, rep))
			if err != nil || !slices.Equal(enc.IDs, want) {
				t.Errorf("render %v, API %d: ids of %q from %s (%q), %v; want those of %q", render, p.API, bpe.Decode(enc.IDs), enc.Source, enc.Reason, err, bpe.Decode(want))
			}
		}
		if enc, err := pool.Encode(t.Context(), request(stored, rep)); err != nil || enc.Source != tokenizer.SourceNone || enc.Reason != tokenizer.ReasonUnmappable {
			t.Errorf("a stored response: %d ids from %s (%q), %v; want none (unmappable)", len(enc.IDs), enc.Source, enc.Reason, err)
		}
	}
}

// Of a body that was cut, what came before the cut is scored.
func TestACutBodyGivesABeginning(t *testing.T) {
	rep := serve(t, "a", &simulated{render: true})
	pool := start(t, tokenizer.DefaultConfig())
	long := ""
	for range 30 {
		long += "The quick brown fox. "
	}
	whole := encode(t, pool, `{"prompt":`+quoted(long)+`}`, rep).IDs
	cut := read(t, `{"prompt":`+quoted(long[:400])+`}`)
	cut.Partial = true
	enc, err := pool.Encode(t.Context(), request(cut, rep))
	if err != nil || !enc.Partial || len(enc.IDs) < 20 || !slices.Equal(enc.IDs, whole[:len(enc.IDs)]) {
		t.Errorf("cut text: %d ids, partial %v, %v; want a beginning of the whole", len(enc.IDs), enc.Partial, err)
	}
	chat := encode(t, pool, `{"messages":[{"role":"system","content":`+quoted(long)+`},{"role":"user","content":"Hello"}]}`, rep).IDs
	first := read(t, `{"messages":[{"role":"system","content":`+quoted(long)+`}]}`)
	first.Partial, first.Body = true, []byte(`{"messages":[{"role":"system","content":"...`)
	enc, err = pool.Encode(t.Context(), request(first, rep))
	if err != nil || !enc.Partial || len(enc.IDs) < 20 || !slices.Equal(enc.IDs, chat[:len(enc.IDs)]) {
		t.Errorf("cut chat: %d ids, partial %v, %v; want a beginning of the whole", len(enc.IDs), enc.Partial, err)
	}
}

// TestBodiesOfOtherFormatsAreRenderedAsTheyAre: vLLM's routes for Anthropic and Responses bodies give the
// ids of what has a chat form and of what has none; older engines, and what the routes refuse, take the chat form.
func TestBodiesOfOtherFormatsAreRenderedAsTheyAre(t *testing.T) {
	ids := []uint32{5, 6, 7, 8, 9}
	fresh := serve(t, "a", &simulated{render: true, native: true, nativeIDs: ids})
	old := serve(t, "b", &simulated{render: true})
	response := func(body string) *prompt.Prompt {
		p := read(t, `{"prompt":"Hello"}`)
		p.API, p.Body = prompt.APIResponses, []byte(body)
		return p
	}
	messages := read(t, `{"system":"Be kind","max_tokens":3,"messages":[{"role":"user","content":"Hello"}]}`)
	messages.API = prompt.APIMessages
	for _, tt := range []struct {
		name   string
		prompt *prompt.Prompt
		native bool // on the new engine
		older  tokenizer.Source
	}{
		{"messages", messages, true, tokenizer.SourceRender},
		{"a response", response(`{"input":"Hello","instructions":"Be kind"}`), true, tokenizer.SourceRender},
		{"a response with tools", response(`{"input":"Hello","tools":[{"type":"function","name":"f"}]}`), true, tokenizer.SourceNone},
		{"one that continues a stored response", response(`{"input":"Hello","previous_response_id":"r"}`), false, tokenizer.SourceNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pool := start(t, tokenizer.DefaultConfig())
			enc, err := pool.Encode(t.Context(), request(tt.prompt, fresh))
			if err != nil || slices.Equal(enc.IDs, ids) != tt.native || enc.Exact != tt.native {
				t.Errorf("new engine: %v from %s (%q), %v", enc.IDs, enc.Source, enc.Reason, err)
			}
			if again, _ := pool.Encode(t.Context(), request(tt.prompt, fresh)); tt.native && again.Source != tokenizer.SourceExactCache {
				t.Errorf("asked again: from %s", again.Source)
			}
			pool = start(t, tokenizer.DefaultConfig())
			for range 2 {
				enc, err = pool.Encode(t.Context(), request(tt.prompt, old))
				if err != nil || enc.Source != tt.older && enc.Source != tokenizer.SourceExactCache || slices.Equal(enc.IDs, ids) {
					t.Errorf("old engine: %v from %s (%q), %v", enc.IDs, enc.Source, enc.Reason, err)
				}
			}
		})
	}
}
