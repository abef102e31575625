package sse

import (
	"bytes"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
)

// TestAnthropicInputIsTheRestOfThePrompt: in Anthropic's format the whole prompt is input_tokens and what was
// read from the cache and written into it.
func TestAnthropicInputIsTheRestOfThePrompt(t *testing.T) {
	const event = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":"
	const last = "}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":"
	const end = "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	for name, tc := range map[string]struct {
		api    prompt.API
		stream bool
		text   string
		want   Usage
	}{
		"whole answer, vLLM": {
			prompt.APIMessages, false,
			`{"id":"m","usage":{"input_tokens":5,"output_tokens":3,"cache_creation_input_tokens":32,"cache_read_input_tokens":64}}`, Usage{101, 3, 64},
		},
		"whole answer, nothing told of the cache": {prompt.APIMessages, false, `{"usage":{"input_tokens":40,"output_tokens":3}}`, Usage{40, 3, -1}},
		"whole answer, nulls": {
			prompt.APIMessages, false,
			`{"usage":{"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"input_tokens":40,"output_tokens":3}}`, Usage{40, 3, -1},
		},
		"stream, vLLM: the whole prompt first, its parts at the end": {
			prompt.APIMessages, true,
			event + `{"input_tokens":101,"output_tokens":0}` + last + `{"input_tokens":5,"output_tokens":3,"cache_creation_input_tokens":32,"cache_read_input_tokens":64}` + end, Usage{101, 3, 64},
		},
		"stream, Anthropic: the parts first, the answer's length at the end": {
			prompt.APIMessages, true,
			event + `{"input_tokens":5,"cache_creation_input_tokens":32,"cache_read_input_tokens":64,"output_tokens":1}` + last + `{"output_tokens":9}` + end, Usage{101, 9, 64},
		},
		"OpenAI's format counts the whole prompt": {
			prompt.APIResponses, false, `{"usage":{"input_tokens":101,"input_tokens_details":{"cached_tokens":64},"output_tokens":3}}`, Usage{101, 3, 64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, step := range []int{1, 7, len(tc.text)} {
				var s Scanner
				s.Reset(tc.api, tc.stream)
				for b := []byte(tc.text); len(b) > 0; b = b[min(step, len(b)):] {
					s.Feed(bytes.Clone(b[:min(step, len(b))]))
				}
				if got, ok := s.Usage(); !ok || got != tc.want {
					t.Errorf("in pieces of %d: usage %+v %v, want %+v", step, got, ok, tc.want)
				}
			}
		})
	}
}
