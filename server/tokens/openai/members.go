package openai

import "encoding/json"

// Unread reports whether the engine reads no cached block for the request: it is asked for the
// log-probabilities of the prompt itself, for which it computes all of it.
func (r *Request) Unread() bool {
	for _, name := range [...]string{"prompt_logprobs", "prompt_logprob_token_ids"} {
		if given(r.Raw(name)) {
			return true
		}
	}
	return r.Route == RouteCompletions && string(r.Raw("echo")) == "true" && given(r.Raw("logprobs"))
}

// given reports whether a member is there and not null.
func given(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" }

// Text returns the text of the top-level member called name, and whether it is there and a string.
func (r *Request) Text(name string) (string, bool) {
	raw := r.Raw(name)
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return "", false
	}
	return text, true
}
