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
