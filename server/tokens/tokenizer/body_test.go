package tokenizer_test

import (
	"errors"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// Whatever a client sends ends as ids, as no ids with a reason, or as its own fault; twice the same way.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}],"tools":[{"type":"function"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":null,"tool_calls":[]}]}`,
		`{"prompt":["a","b"]}`, `{"prompt":[[1,2],[3]]}`, `{"prompt":"x","truncate_prompt_tokens":-1,"max_tokens":3}`,
		`{"input":"x","instructions":"y"}`, `{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]}`,
		`{"messages":[{"role":"assistant","content":" \n"}],"continue_final_message":true}`, `{"messages":[{"content":"","role":"user"}],"documents":null}`,
	} {
		for route := range 4 {
			f.Add([]byte(seed), route, false)
		}
		f.Add([]byte(seed[:len(seed)/2]), 0, true)
	}
	pool := tokenizer.New(tokenizer.DefaultConfig(), tokenizer.Params{})
	reps := []*replica.Replica{serve(f, "a", &simulated{template: templates["think"], render: true})}
	f.Fuzz(func(t *testing.T, body []byte, route int, truncated bool) {
		routes := []openai.Route{openai.RouteChat, openai.RouteCompletions, openai.RouteResponses, openai.RouteMessages}
		req, err := openai.Read(openai.Params{Route: routes[uint(route)%4], Body: body, Truncated: truncated})
		if err != nil {
			return
		}
		req.Prompt.Model = model
		var first *tokenizer.Encoding
		for range 2 {
			enc, err := pool.Encode(t.Context(), tokenizer.Request{Prompt: &req.Prompt, Replicas: reps, Pool: model})
			var refusal *tokenizer.ClientFault
			switch {
			case err != nil && !errors.As(err, &refusal):
				t.Fatalf("%s: %v", body, err)
			case err != nil:
				return
			case (enc.Source == tokenizer.SourceNone) != (enc.Reason != "") || (enc.Source == tokenizer.SourceNone) != (len(enc.IDs) == 0):
				t.Fatalf("%s: %d ids from %s (%q)", body, len(enc.IDs), enc.Source, enc.Reason)
			}
			enc.Hashes(4, blockhash.Namespace{})
			tokenizer.ApproximateHashes(nil, &req.Prompt, 16, blockhash.Namespace{})
			if first == nil {
				first = enc
			} else if req.Prompt.Kind != prompt.KindNone && !enc.Partial && !first.Partial && len(enc.IDs) != len(first.IDs) {
				t.Fatalf("%s: %d ids, then %d", body, len(first.IDs), len(enc.IDs))
			}
		}
		pool.WaitIdle()
	})
}
