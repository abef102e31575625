package openai_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestMustPromptLogprobsReadNoCache(t *testing.T) {
	for body, want := range map[string]bool{
		`{"model":"m","prompt":"x"}`:                                false,
		`{"model":"m","prompt":"x","prompt_logprobs":0}`:            true,
		`{"model":"m","prompt":"x","prompt_logprobs":null}`:         false,
		`{"model":"m","prompt":"x","echo":true,"logprobs":1}`:       true,
		`{"model":"m","prompt":"x","echo":true}`:                    false,
		`{"model":"m","prompt":"x","logprobs":1}`:                   false,
		`{"model":"m","prompt":"x","prompt_logprob_token_ids":[1]}`: true,
	} {
		r, err := openai.Read(openai.Params{Route: openai.RouteCompletions, Body: []byte(body)})
		if err != nil || r.Unread() != want {
			t.Errorf("%s: Unread() = %v, %v, want %v", body, r.Unread(), err, want)
		}
	}
}
