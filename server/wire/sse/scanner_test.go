package sse

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
)

const chatStream = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"say \"usage\":{\"prompt_tokens\":9} and \"finish_reason\":\"no\""},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"usage"},"finish_reason":"length","stop_reason":"x"}]}

data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}

data: [DONE]

`

const messagesStream = `event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","usage":{"input_tokens":11,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}

event: message_stop
data: {"type":"message_stop"}

`

const responsesStream = `event: response.created
data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"Hi"}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":1}}}

`

// seen is everything that a Scanner tells.
type seen struct {
	events, content int
	failed, done    bool
	finish, id      string
	usage           Usage
	hasUsage        bool
}

func scan(api prompt.API, stream bool, text string, step int) seen {
	var s Scanner
	s.Reset(api, stream)
	for b := []byte(text); len(b) > 0; {
		n := min(step, len(b))
		s.Feed(bytes.Clone(b[:n]))
		b = b[n:]
	}
	u, ok := s.Usage()
	return seen{s.Events(), s.ContentEvents(), s.Failed(), s.Done(), s.FinishReason(), s.ResponseID(), u, ok}
}

func TestScannerSeesWhatMatters(t *testing.T) {
	none := Usage{-1, -1, -1}
	cases := []struct {
		name, text string
		api        prompt.API
		stream     bool
		want       seen
	}{
		{"chat", chatStream, prompt.APIChat, true, seen{4, 4, false, true, "length", "chatcmpl-1", Usage{12, 3, 8}, true}},
		{"messages", messagesStream, prompt.APIMessages, true, seen{5, 2, false, true, "end_turn", "msg_1", Usage{11, 4, -1}, true}},
		{"responses", responsesStream, prompt.APIResponses, true, seen{3, 1, false, true, "", "resp_1", Usage{5, 1, 0}, true}},
		{"error, then DONE", "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\ndata: [DONE]\n\n", prompt.APIChat, true, seen{1, 0, true, true, "", "", none, false}},
		{"error is null", "data: {\"error\": null,\"choices\":[]}\n\n", prompt.APIChat, true, seen{1, 1, false, false, "", "", none, false}},
		{"error event", "event: error\ndata: {\"type\":\"error\"}\n\n", prompt.APIMessages, true, seen{1, 0, true, false, "", "", none, false}},
		{"response failed", "event: response.failed\ndata: {}\n\n", prompt.APIResponses, true, seen{1, 0, true, false, "", "", none, false}},
		{"comments and ids", ": hello\n\nid: 5\ndata:{}\nretry: 3\n\n\n\n", prompt.APIChat, true, seen{1, 1, false, false, "", "", none, false}},
		{"unfinished event", "data: {}\n\ndata: {}\n", prompt.APIChat, true, seen{1, 1, false, false, "", "", none, false}},
		{"several data lines", "data: {\ndata: }\n\n", prompt.APIChat, true, seen{1, 1, false, false, "", "", none, false}},
		{"usage null", "data: {\"usage\":null}\n\n", prompt.APIChat, true, seen{1, 1, false, false, "", "", none, false}},
		{"cached null", "data: {\"usage\":{\"prompt_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":null}}}\n\n", prompt.APIChat, true,
			seen{1, 1, false, false, "", "", Usage{3, -1, -1}, true}},
		{"answer at once", `{"id":"cmpl-2","choices":[{"text":"\"usage\":{}","finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2},"prompt_token_ids":[1,2,3]}`,
			prompt.APICompletions, false, seen{0, 1, false, false, "stop", "cmpl-2", Usage{5, 2, -1}, true}},
		{"pretty JSON", "{\n  \"id\" : \"x\",\n  \"usage\" : {\n    \"prompt_tokens\" : 7\n  }\n}", prompt.APIChat, false, seen{0, 1, false, false, "", "x", Usage{7, -1, -1}, true}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, ends := range []string{"\n", "\r\n", "\r"} {
				text := c.text
				if c.stream {
					text = strings.ReplaceAll(text, "\n", ends)
				}
				for step := 1; step <= len(text); step++ {
					if got := scan(c.api, c.stream, text, step); got != c.want {
						t.Fatalf("pieces of %d, line ends %q: got %+v, want %+v", step, ends, got, c.want)
					}
				}
			}
		})
	}
}

func TestScannerTellsTheFirstContentOnce(t *testing.T) {
	var s Scanner
	s.Reset(prompt.APIResponses, true)
	var at []int
	for i, event := range strings.SplitAfter(responsesStream, "\n\n") {
		if s.Feed([]byte(event)) {
			at = append(at, i)
		}
	}
	if len(at) != 1 || at[0] != 1 {
		t.Errorf("first content at %v, want [1]", at)
	}
}

func TestScannerAllocatesForTheUsageOnly(t *testing.T) {
	var s Scanner
	whole := []byte(chatStream)
	content := whole[:bytes.Index(whole, []byte(`"usage":{`))]
	for name, c := range map[string]struct {
		text []byte
		most float64
	}{"content": {content, 0}, "whole stream": {whole, 1}} {
		allocs := testing.AllocsPerRun(100, func() {
			s.Reset(prompt.APIChat, true)
			s.Feed(c.text[:100])
			s.Feed(c.text[100:])
			s.Usage()
		})
		if allocs > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, allocs, c.most)
		}
	}
}

// FuzzScanner compares with a parser that holds the whole text and decodes the JSON.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{chatStream, messagesStream, responsesStream, "data: 1\r\rdata:\n\n", "event: error\r\ndata: x\r\n\r\n"} {
		f.Add(text, uint8(1))
		f.Add(text, uint8(200))
	}
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		got := scan(prompt.APIChat, true, text, int(step)+1)
		want := naive(text)
		if got.events != want.events || got.failed != want.failed || got.done != want.done || got.content != want.content {
			t.Errorf("%q in pieces of %d: got %+v, want %+v", text, int(step)+1, got, want)
		}
		whole := scan(prompt.APIChat, true, text, len(text)+1)
		if got != whole {
			t.Errorf("%q: in pieces of %d %+v, at once %+v", text, int(step)+1, got, whole)
		}
	})
}

// naive reads the events of a text by the book.
func naive(text string) seen {
	var s seen
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	in := bufio.NewReader(strings.NewReader(text))
	var data []string
	name := ""
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return s
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			s.event(name, data)
			name, data = "", nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			data = append(data, value)
		case "event":
			name = value
		}
	}
}

func (s *seen) event(name string, data []string) {
	if data == nil {
		return
	}
	if len(data) == 1 && strings.Trim(data[0], " \t\n\v\f\r\u0085\u00a0") == "[DONE]" {
		s.done = true
		return
	}
	s.events++
	kind := classifyName([]byte(name))
	isErr := isErrorObject([]byte(data[0])[:min(len(data[0]), headSize-6)])
	s.failed = s.failed || isErr || kind == nameError
	s.done = s.done || kind == nameEnd
	if !isErr && (kind == nameContent || name == "") {
		s.content++
	}
}

func TestTheErrorRuleAgreesWithJSON(t *testing.T) {
	for _, text := range []string{`{"error":{"message":"x"}}`, `{ "error" : "x" }`, `{"error":null}`, `{"errors":1}`, `{"a":1}`, `[]`, `{}`} {
		var decoded struct{ Error any }
		json.Unmarshal([]byte(text), &decoded)
		if got, want := isErrorObject([]byte(text)), decoded.Error != nil; got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

func BenchmarkScanner(b *testing.B) {
	chunk := []byte(`data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	var s Scanner
	s.Reset(prompt.APIChat, true)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		s.Feed(chunk)
	}
}
