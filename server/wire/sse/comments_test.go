package sse_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

func TestLeadingCommentsAreSkipped(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"data: a\n\n: b\n\n", "data: a\n\n: b\n\n"},
		{": keep-alive\n\ndata: a\n\n", "data: a\n\n"},
		{": a\r\n\r\n:\r\n\r\n\nevent: x\n", "event: x\n"},
		{": only", ""},
		{"\n\n:\n\n", ""},
		{"", ""},
	} {
		for size := 1; size <= len(c.in)+1; size++ {
			var l sse.Lead
			got := ""
			for rest := c.in; rest != ""; {
				n := min(size, len(rest))
				got += string(l.Skip([]byte(rest[:n])))
				rest = rest[n:]
			}
			if got != c.want {
				t.Errorf("%q in pieces of %d: %q, want %q", c.in, size, got, c.want)
			}
		}
	}
}

func TestIsComment(t *testing.T) {
	for in, want := range map[string]bool{": a\n\n": true, ":\r\n\r\n": true, ": a": true, ": a\n\ndata: b\n\n": false, "data: :\n\n": false, "\n": false, "": false} {
		if got := sse.IsComment([]byte(in)); got != want {
			t.Errorf("IsComment(%q) = %v", in, got)
		}
	}
}

func TestAbortedAnswers(t *testing.T) {
	const (
		more  = `data: {"choices":[{"index":0,"delta":{"content":"the \\"abort\\" key"},"finish_reason":null}]}` + "\n\n"
		abort = `data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}` + "\n\n"
		stop  = `data: {"choices":[{"index":1,"delta":{"content":""},"finish_reason":"stop"}]}` + "\n\n"
		done  = "data: [DONE]\n\n"
		begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"stop_reason\":null}}\n\n"
		delta = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":null}}\n\n"
		ended = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n"
		over  = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	)
	for name, c := range map[string]struct {
		api    prompt.API
		stream bool
		text   string
		want   string // before the end of an aborted stream
		not    bool
	}{
		"chat":                      {prompt.APIChat, true, more + abort + done, more, false},
		"chat, only an end":         {prompt.APIChat, true, abort + done, "", false},
		"completions":               {prompt.APICompletions, true, more + abort, more, false},
		"one of two choices":        {prompt.APIChat, true, abort + stop + done, "", false},
		"a whole answer":            {prompt.APIChat, true, more + stop + done, "", true},
		"an answer of another kind": {prompt.APIOther, false, `{"requests":[{"finish_reason":"abort"}]}`, "", true},
		"not streamed":              {prompt.APIChat, false, `{"choices":[{"finish_reason":"abort"}]}`, "", false},
		"messages":                  {prompt.APIMessages, true, begin + delta + over, begin + delta, false},
		"whole messages":            {prompt.APIMessages, true, begin + ended + over, "", true},
		"a message":                 {prompt.APIMessages, false, `{"content":[],"stop_reason":null}`, "", false},
		"a whole message":           {prompt.APIMessages, false, `{"content":[{"input":{"stop_reason":null}}],"stop_reason":"tool_use"}`, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(c.text); size++ {
				var s sse.Scanner
				s.Reset(c.api, c.stream)
				got, aborted := "", false
				for rest := c.text; rest != "" && !aborted; {
					n := min(size, len(rest))
					piece := []byte(rest[:n])
					rest = rest[n:]
					between := s.Between()
					s.Feed(piece)
					if aborted = s.Aborted(rest == ""); aborted {
						piece = s.BeforeAbort(piece, between)
					}
					got += string(piece)
				}
				if aborted == c.not {
					t.Fatalf("in pieces of %d: Aborted() = %v", size, aborted)
				}
				if c.stream && aborted && size == len(c.text) && got != c.want {
					t.Errorf("the client gets %q, want %q", got, c.want)
				}
			}
		})
	}
}
