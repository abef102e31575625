package openai_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestExpectedOutput(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		header http.Header
		want   int
	}{
		"no hint":                 {`{"messages":[]}`, nil, 0},
		"the limit":               {`{"messages":[],"max_tokens":500}`, nil, 500},
		"a field":                 {`{"messages":[],"max_tokens":500,"expected_output_tokens":20}`, nil, 20},
		"above the limit":         {`{"messages":[],"max_tokens":5,"expected_output_tokens":20}`, nil, 20},
		"Dynamo's field":          {`{"messages":[],"nvext":{"agent_hints":{"priority":1,"osl":30}}}`, nil, 30},
		"Dynamo's field in words": {`{"messages":[],"max_tokens":500,"nvext":{"agent_hints":{"osl":"HIGH"}}}`, nil, 500},
		"nvext is null":           {`{"messages":[],"max_tokens":500,"nvext":null}`, nil, 500},
		"kvpilot's header":        {`{"messages":[],"expected_output_tokens":20}`, http.Header{"X-Kvpilot-Expected-Output-Tokens": {"40"}}, 40},
		"the agents' header":      {`{"messages":[],"max_tokens":500}`, http.Header{"X-Nat-Expected-Output-Tokens": {"50"}}, 50},
		"a field before it":       {`{"messages":[],"expected_output_tokens":20}`, http.Header{"X-Nat-Expected-Output-Tokens": {"50"}}, 20},
		"no number":               {`{"messages":[],"max_tokens":500}`, http.Header{"X-Kvpilot-Expected-Output-Tokens": {"many"}}, 500},
		"below zero":              {`{"messages":[],"max_tokens":500,"expected_output_tokens":-3}`, nil, 500},
		"far too many":            {`{"messages":[],"expected_output_tokens":2000000000}`, nil, 1 << 20},
	} {
		for _, large := range []bool{false, true} { // a large body is remembered
			body := c.body
			if large {
				body = strings.Replace(body, `{`, `{"user":"`+strings.Repeat("u", 8<<10)+`",`, 1)
			}
			memory := openai.NewMemory(1 << 20)
			for range 4 {
				r, err := memory.Read(openai.Params{Route: openai.RouteChat, Body: []byte(body), Header: c.header})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := r.Expected(); got != c.want {
					t.Errorf("%s: Expected() = %d, want %d", name, got, c.want)
				}
			}
		}
	}
}

// A hint is no reason for not resuming a stream.
func TestAHintLeavesAStreamResumable(t *testing.T) {
	r, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(`{"stream":true,"messages":[{"role":"user","content":"x"}],"expected_output_tokens":3,"nvext":{"agent_hints":{"osl":3}}}`)})
	if err != nil || !r.Continuation().ByText() {
		t.Errorf("ByText() = false, %v", err)
	}
}
