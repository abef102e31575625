package openai

import "net/http"

// maxExpected bounds the hint of how many tokens an answer will have.
const maxExpected = 1 << 20

// The headers with that hint, in the spelling of net/http: kvpilot's own, and the header of NVIDIA's NeMo Agent Toolkit.
const (
	headerExpected      = "X-Kvpilot-Expected-Output-Tokens"
	headerAgentExpected = "X-Nat-Expected-Output-Tokens"
)

// Expected is how many tokens the answer is expected to have: the caller's hint, or else its limit; 0 when there is neither. The hint
// is the first of kvpilot's header, expected_output_tokens in the body, nvext.agent_hints.osl in the body, as clients made for Dynamo
// write it, and the agents' header. A value that is no number above zero says nothing.
func (r *Request) Expected() int {
	if r.expected > 0 {
		return r.expected
	}
	return r.MaxTokens
}

// applyExpected sets the hint.
func (r *Request) applyExpected(h http.Header) {
	r.expected = 0
	for _, hint := range [...]int{headerNumber(h[headerExpected]), r.own.expected, r.own.agentExpected, headerNumber(h[headerAgentExpected])} {
		if hint > 0 {
			r.expected = min(hint, maxExpected)
			return
		}
	}
}

func headerNumber(values []string) int {
	if len(values) == 0 {
		return 0
	}
	return wholeNumber(values[0])
}

// agentHints reads the output length in nvext.agent_hints.
func (r *reader) agentHints() bool {
	r.req.own.agentExpected = 0
	return r.object(func(key []byte) bool {
		if string(key) != "agent_hints" {
			return r.s.Skip()
		}
		return r.object(func(key []byte) bool {
			if string(key) == "osl" {
				return r.positive(&r.req.own.agentExpected)
			}
			return r.s.Skip()
		})
	})
}
