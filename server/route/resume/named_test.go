package resume_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
)

const (
	messageTools  = `"tools":[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}]`
	responseTools = `"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}]`
)

// namedKinds are requests whose events have names.
var namedKinds = map[string]struct {
	api        prompt.API
	path, body string
}{
	"message":                     {prompt.APIMessages, "/v1/messages", `"max_tokens":40,"messages":[{"role":"user","content":"Tell me"}]`},
	"message with a thought":      {prompt.APIMessages, "/v1/messages", `"max_tokens":90,"messages":[{"role":"user","content":"think first"}]`},
	"message with a call":         {prompt.APIMessages, "/v1/messages", `"max_tokens":90,"messages":[{"role":"user","content":"use get_weather"}],` + messageTools},
	"message with thought, call":  {prompt.APIMessages, "/v1/messages", `"max_tokens":90,"messages":[{"role":"user","content":"think first, then use get_weather"}],` + messageTools},
	"message that must call":      {prompt.APIMessages, "/v1/messages", `"max_tokens":90,"messages":[{"role":"user","content":"Tell me"}],"tool_choice":{"type":"any"},` + messageTools},
	"response":                    {prompt.APIResponses, "/v1/responses", `"max_output_tokens":40,"input":"Tell me"`},
	"response with a thought":     {prompt.APIResponses, "/v1/responses", `"max_output_tokens":90,"input":"think first"`},
	"response with a call":        {prompt.APIResponses, "/v1/responses", `"max_output_tokens":90,"input":"use get_weather",` + responseTools},
	"response with thought, call": {prompt.APIResponses, "/v1/responses", `"max_output_tokens":90,"input":"think first, then use get_weather",` + responseTools},
}

// once asks without the memory of ask.
func (e *engine) once(path, body string) []byte {
	e.t.Helper()
	resp, err := e.client.Post(e.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s: %d %s %v", path, resp.StatusCode, text, err)
	}
	return text
}

var (
	randomID  = regexp.MustCompile(`"(id|item_id|call_id)":"([^"]*)"`)
	signature = regexp.MustCompile(`"signature":"[^"]*"`)
	cached    = regexp.MustCompile(`"(cached_tokens|cache_creation_input_tokens|cache_read_input_tokens|input_tokens|created_at)":\d+`)
)

// plainEvents replaces ids by the order in which they come, and drops signatures, times, and what a cache held.
func plainEvents(stream []byte) string {
	seen := map[string]int{}
	out := randomID.ReplaceAllStringFunc(string(stream), func(s string) string {
		m := randomID.FindStringSubmatch(s)
		if _, ok := seen[m[2]]; !ok {
			seen[m[2]] = len(seen)
		}
		return fmt.Sprintf(`"%s":"%d"`, m[1], seen[m[2]])
	})
	return cached.ReplaceAllString(signature.ReplaceAllString(out, `"signature":""`), `"$1":0`)
}

// events cuts a stream into whole events.
func events(stream []byte) (list [][]byte) {
	for len(stream) > 0 {
		n := bytes.Index(stream, []byte("\n\n"))
		if n < 0 {
			return append(list, stream)
		}
		list, stream = append(list, stream[:n+2]), stream[n+2:]
	}
	return list
}

// joined is the stream with events that follow each other at one place made one, and all of them numbered again: what a client makes of it.
func joined(t *testing.T, stream []byte) string {
	t.Helper()
	var out []string
	last, number := "", 0
	for _, e := range events([]byte(plainEvents(stream))) {
		head, data, ok := strings.Cut(strings.TrimSuffix(string(e), "\n\n"), "data: ")
		var v map[string]any
		if !ok || json.Unmarshal([]byte(data), &v) != nil {
			out, last = append(out, string(e)), ""
			continue
		}
		if n, ok := v["sequence_number"]; ok {
			if int(n.(float64)) != number {
				t.Errorf("event %d has the number %v: %s", number, n, e)
			}
			number++
			delete(v, "sequence_number")
		}
		text, at := "", v
		if d, ok := v["delta"].(map[string]any); ok {
			at = d
		}
		for _, name := range []string{"delta", "text", "thinking", "partial_json"} {
			if s, ok := at[name].(string); ok && v["delta"] != nil {
				text, at[name] = s, ""
			}
		}
		raw, _ := json.Marshal(v)
		if place := head + string(raw); text != "" && place == last {
			out[len(out)-1] += text
		} else {
			out, last = append(out, place+text), place
			if text == "" {
				last = ""
			}
		}
	}
	return strings.Join(out, "\n")
}

// merged joins pairs of deltas of one place, as an engine does whose reader is late.
func merged(stream []byte) []byte {
	pair := regexp.MustCompile(`^(event: \S*delta\ndata: .*"(?:text|thinking|partial_json|delta)":")((?:[^"\\]|\\.)*)(".*\n\n)$`)
	var out []byte
	list := events(stream)
	for i := 0; i < len(list); i++ {
		a := pair.FindSubmatch(list[i])
		if a == nil || i+1 == len(list) {
			out = append(out, list[i]...)
			continue
		}
		b := pair.FindSubmatch(list[i+1])
		number := regexp.MustCompile(`"sequence_number":\d+`)
		if b == nil || !bytes.Equal(number.ReplaceAll(a[1], nil), number.ReplaceAll(b[1], nil)) || !bytes.Equal(number.ReplaceAll(a[3], nil), number.ReplaceAll(b[3], nil)) {
			out = append(out, list[i]...)
			continue
		}
		out = append(append(append(append(out, a[1]...), a[2]...), b[2]...), a[3]...)
		i++
	}
	return out
}

// A message or a response whose engine dies at any event is continued by another engine's, in one stream.
func TestNamedEventsAreRepeated(t *testing.T) {
	a, b := start(t, "0.33.0"), start(t, "0.33.0")
	for name, kind := range namedKinds {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","stream":true,"temperature":0,` + kind.body + `}`
			first, second := a.once(kind.path, body), b.once(kind.path, body)
			if joined(t, first) != joined(t, second) || bytes.Equal(first, second) {
				t.Fatalf("the engines write\n%s\nand\n%s", first, second)
			}
			all, step := events(first), 1
			if testing.Short() || raceEnabled {
				step = 4
			}
			for at := 0; at < len(all); at += step {
				for _, other := range [][]byte{second, merged(second), first} {
					for _, third := range [][]byte{nil, merged(second)} {
						continued(t, kind.api, all, at, other, third)
					}
				}
			}
		})
	}
}

// continued feeds the first events of a stream, then half of another engine's answer where a third one follows, and the whole of the last.
func continued(t *testing.T, api prompt.API, all [][]byte, at int, others ...[]byte) {
	t.Helper()
	f := resume.New(resume.Params{API: api, Repeated: 1})
	var got []byte
	feed := func(piece []byte) error {
		out, err := f.Feed(bytes.Clone(piece))
		got = append(got, out...)
		return err
	}
	for _, e := range all[:at] {
		if err := feed(e); err != nil {
			t.Fatalf("cut at %d: %v", at, err)
		}
	}
	if others[1] != nil {
		others[0] = others[0][:len(others[0])*2/3]
	}
	for _, other := range others {
		if other == nil {
			continue
		}
		if out, ok := f.Ending(); ok {
			got = append(got, out...)
			break
		}
		if p, ok := f.Point(); !ok || !p.Again {
			break // the client has all of it
		}
		f.Repeat()
		if err := feed(other); err != nil {
			t.Fatalf("cut at %d: %v\n%s", at, err, got)
		}
	}
	whole := bytes.Join(all, nil)
	if have, want := joined(t, got), joined(t, whole); have != want {
		t.Fatalf("cut at %d: the client has\n%s\nwant\n%s", at, have, want)
	}
}

// An answer that differs ends with an error, wherever it differs, and nothing of it reaches the client.
func TestNamedEventsThatDiffer(t *testing.T) {
	const (
		begin  = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"content\":[],\"model\":\"m\"}}\n\n"
		block  = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
		closes = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
		ended  = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n"
		stop   = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	)
	say := func(s string) string {
		return `event: content_block_delta` + "\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + s + `"}}` + "\n\n"
	}
	for name, c := range map[string]struct {
		has, other string
		want       error
		out        string
	}{
		"the same":               {begin + block + say("ab"), begin + block + say("a") + say("bc") + closes + ended + stop, nil, say("c") + closes + ended + stop},
		"other words":            {begin + block + say("ab"), begin + block + say("ax") + say("c"), resume.ErrDiverged, ""},
		"fewer words":            {begin + block + say("ab"), begin + block + say("a") + closes + ended + stop, resume.ErrDiverged, ""},
		"another block":          {begin + block + say("ab"), begin + strings.Replace(block, `"text"`, `"thinking"`, 1) + say("ab") + say("c"), resume.ErrDiverged, ""},
		"more blocks":            {begin + block, begin + block + block + say("x") + say("y"), nil, block + say("x") + say("y")},
		"another model":          {begin + block, strings.Replace(begin, `"m"`, `"n"`, 1) + block + say("x"), resume.ErrDiverged, ""},
		"an early end":           {begin + block + say("ab"), begin + ended + stop, resume.ErrDiverged, ""},
		"an aborted one":         {begin + block + say("a"), begin + block + say("ab") + closes + strings.Replace(ended, `"end_turn"`, "null", 1) + stop, resume.ErrAborted, say("b")},
		"a failure":              {begin + block + say("a"), begin + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"x\"}}\n\n", resume.ErrFailed, ""},
		"the client's own fault": {begin + block + say("a"), begin + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"x\"}}\n\n", resume.ErrStrange, ""},
		"nothing so far":         {"", begin + block + say("ab"), nil, begin + block + say("ab")},
		"what is no JSON":        {begin, "event: x\ndata: {\n\n", resume.ErrStrange, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := resume.New(resume.Params{API: prompt.APIMessages, Repeated: 1})
			if out, err := f.Feed([]byte(c.has)); err != nil || string(out) != c.has {
				t.Fatalf("Feed() = %q, %v", out, err)
			}
			f.Repeat()
			out, err := f.Feed([]byte(c.other))
			if !errors.Is(err, c.want) || string(out) != c.out {
				t.Errorf("Feed() = %q, %v, want %q, %v", out, err, c.out, c.want)
			}
		})
	}
}

// Of an aborted answer the client gets nothing that closes a part of it, and a message that lacks its last event gets that.
func TestNamedEventsEnd(t *testing.T) {
	e := start(t, "0.33.0")
	for name, kind := range namedKinds {
		all := events(e.once(kind.path, `{"model":"sim","stream":true,"temperature":0,`+kind.body+`}`))
		f := resume.New(resume.Params{API: kind.api, Repeated: 1})
		f.Halted = func() bool { return true }
		var got []byte
		var err error
		for _, one := range all {
			one = bytes.Replace(bytes.Clone(one), []byte(`"stop_reason":"`), []byte(`"stop_reason":null,"x":"`), 1)
			var out []byte
			if out, err = f.Feed(one); err != nil {
				break
			}
			got = append(got, out...)
		}
		if n := len(events(got)); !errors.Is(err, resume.ErrAborted) || bytes.Contains(events(got)[n-1], []byte(".done")) || bytes.Contains(events(got)[n-1], []byte("_stop")) {
			t.Errorf("%s: %v, the client has %s", name, err, got)
		}
		if kind.api != prompt.APIMessages {
			continue
		}
		f = resume.New(resume.Params{API: kind.api, Repeated: 1})
		got = nil
		for _, one := range all[:len(all)-1] {
			out, err := f.Feed(bytes.Clone(one))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, out...)
		}
		end, ok := f.Ending()
		if got = append(got, end...); !ok || joined(t, got) != joined(t, bytes.Join(all, nil)) {
			t.Errorf("%s: the client has %s", name, got)
		}
	}
}
