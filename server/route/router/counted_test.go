package router_test

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// TestAStreamWithoutUsageIsCounted: what the engine does not tell, the router counts, and says so.
func TestAStreamWithoutUsageIsCounted(t *testing.T) {
	const done = "data: [DONE]\n\n"
	usage := `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n\n"
	role, two := piece(0, "", ""), piece(1, "", "")
	completions := chat(`{"model":"m","stream":true,"prompt":"x"}`)
	completions.Route = openai.RouteCompletions
	for name, tc := range map[string]struct {
		call    *intake.Call
		pieces  string
		prompt  int
		output  int
		counted bool
	}{
		"chat":                    {streamed(""), role + piece(0, "a", "") + piece(0, "b", "stop") + done, 4, 2, true},
		"chat with two choices":   {streamed(`,"n":2`), role + two + piece(0, "a", "stop") + piece(1, "b", "stop") + done, 4, 2, true},
		"completions":             {completions, piece(0, "a", "") + piece(0, "b", "stop") + done, 4, 2, true},
		"the engine's own counts": {streamed(""), role + piece(0, "a", "stop") + usage + done, 7, 9, false},
		"nothing came":            {streamed(""), done, -1, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.script(streaming(strings.SplitAfter(tc.pieces, "\n\n"), nil))
			must(t, f.router.Serve(t.Context(), tc.call, &client{}))
			f.settled()
			f.mu.Lock()
			defer f.mu.Unlock()
			o := f.outcomes[0]
			cached := map[bool]int{true: 0, false: 3}[tc.counted]
			if tc.prompt < 0 {
				cached = -1
			}
			if o.PromptTokens != tc.prompt || o.OutputTokens != tc.output || o.Counted != tc.counted || o.CachedTokens != cached {
				t.Errorf("prompt %d, output %d, cached %d, counted %v; want %d, %d, %d, %v", o.PromptTokens, o.OutputTokens, o.CachedTokens, o.Counted, tc.prompt, tc.output, cached, tc.counted)
			}
		})
	}
}

// TestFollowedStreamsProveTheTokenization: a stream without usage begins with the engine's ids of its prompt, if the router asked for them.
func TestFollowedStreamsProveTheTokenization(t *testing.T) {
	for name, tc := range map[string]struct {
		ids     string
		prompt  int
		equal   int64
		unequal int64
	}{
		"as many":    {"[1,2,3,4]", 4, 1, 0},
		"one more":   {"[1,2,3,4,5]", 5, 0, 1},
		"none given": {"null", 4, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			stream := []string{strings.Replace(role, "[1,2,3,4]", tc.ids, 1), event("chat", "one", "Hello", "[10]", "null"), event("chat", "one", "!", "[11]", "stop"), end}
			f.script(whole(stream))
			must(t, f.router.Serve(t.Context(), chat(asking+"}"), &client{}))
			f.settled()
			if o := f.last(); o.PromptTokens != tc.prompt || o.OutputTokens != 2 || !o.Counted {
				t.Errorf("prompt %d, output %d, counted %v; want %d, 2, true", o.PromptTokens, o.OutputTokens, o.Counted, tc.prompt)
			}
			var equal, unequal int64
			for _, p := range f.params.Tokens.Parity() {
				equal, unequal = equal+p.Equal, unequal+p.Unequal
			}
			if equal != tc.equal || unequal != tc.unequal {
				t.Errorf("%d prompts were as long as the engine's, %d not; want %d and %d", equal, unequal, tc.equal, tc.unequal)
			}
		})
	}
}
