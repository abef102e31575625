package messages_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/messages"
)

const head = `"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m",`

// chunk is an event of a chat with a delta, and more of its choice.
func chunk(delta, more string) string {
	return `data: {` + head + `"choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + more + `,"token_ids":null}]}` + "\n\n"
}

const (
	role  = `{"role":"assistant","content":""}`
	null  = `null`
	usage = `data: {` + head + `"choices":[],"usage":{"prompt_tokens":20,"total_tokens":25,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
	plain = `data: {` + head + `"choices":[],"usage":{"prompt_tokens":20,"total_tokens":25,"completion_tokens":5}}` + "\n\n"
	done  = "data: [DONE]\n\n"
	start = `message_start {"type":"message_start","message":{"id":"chatcmpl-1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":20,"output_tokens":0}}}`
	text0 = `content_block_start {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}`
	stop0 = `content_block_stop {"type":"content_block_stop","index":0}`
	stop  = `message_stop {"type":"message_stop"}`
	spent = `,"usage":{"input_tokens":20,"output_tokens":5}}`
)

func ended(reason, sequence string) string {
	return `message_delta {"type":"message_delta","delta":{"stop_reason":` + reason + `,"stop_sequence":` + sequence + `}` + spent
}

func call(delta string) string { return chunk(`{"tool_calls":[`+delta+`]}`, null) }

func delta(kind, member, text, index string) string {
	return `content_block_delta {"type":"content_block_delta","delta":{"type":"` + kind + `","` + member + `":` + text + `},"index":` + index + `}`
}

func tool(id, name, index string) string {
	return `content_block_start {"type":"content_block_start","content_block":{"type":"tool_use","id":"` + id + `","name":"` + name + `","input":{}},"index":` + index + `}`
}

var signature = regexp.MustCompile(`"signature":"[0-9a-f]{32}"`)

// said is the events in one line each: name and data.
func said(t *testing.T, events []byte) []string {
	t.Helper()
	var list []string
	for e := range strings.SplitSeq(strings.TrimSuffix(string(events), "\n\n"), "\n\n") {
		if strings.HasPrefix(e, ":") {
			list = append(list, e)
			continue
		}
		name, data, ok := strings.Cut(e, "\ndata: ")
		name, named := strings.CutPrefix(name, "event: ")
		if !ok || !named {
			t.Fatalf("%q is no event", e)
		}
		list = append(list, name+" "+signature.ReplaceAllString(data, `"signature":"S"`))
	}
	return list
}

var streams = map[string]struct {
	chat []string
	want []string
}{
	"text": {
		[]string{chunk(role, null), chunk(`{"content":"Hé\n"}`, null), ": keep-alive\n\n", chunk(`{"content":"llo"}`, null), chunk(`{"content":""}`, `"stop","stop_reason":null`), usage, done},
		[]string{start, text0, delta("text_delta", "text", `"Hé\n"`, "0"), ": keep-alive", delta("text_delta", "text", `"llo"`, "0"), stop0,
			`message_delta {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":4,"output_tokens":5,"cache_read_input_tokens":16}}`, stop},
	},
	"nothing": {[]string{chunk(role, null), chunk(`{}`, `"stop"`), plain, done}, []string{start, ended(`"end_turn"`, null), stop}},
	"too long": {[]string{chunk(role, null), chunk(`{"content":"a"}`, `"length"`), plain, done},
		[]string{start, text0, delta("text_delta", "text", `"a"`, "0"), stop0, ended(`"max_tokens"`, null), stop}},
	"a stop string": {[]string{chunk(role, null), chunk(`{"content":"a"}`, `"stop","stop_reason":"END"`), plain, done},
		[]string{start, text0, delta("text_delta", "text", `"a"`, "0"), stop0, ended(`"stop_sequence"`, `"END"`), stop}},
	"a stop token": {[]string{chunk(role, null), chunk(`{"content":"a"}`, `"stop","stop_reason":5`), plain, done},
		[]string{start, text0, delta("text_delta", "text", `"a"`, "0"), stop0, ended(`"end_turn"`, null), stop}},
	"a thought, then text in the same event": {
		[]string{chunk(role, null), chunk(`{"reasoning":"h"}`, null), chunk(`{"reasoning":"m","content":"So"}`, null), chunk(`{}`, `"stop"`), plain, done},
		[]string{start, `content_block_start {"type":"content_block_start","content_block":{"type":"thinking","thinking":""},"index":0}`, delta("thinking_delta", "thinking", `"h"`, "0"), delta("thinking_delta", "thinking", `"m"`, "0"),
			delta("signature_delta", "signature", `"S"`, "0"), stop0, `content_block_start {"type":"content_block_start","content_block":{"type":"text","text":""},"index":1}`, delta("text_delta", "text", `"So"`, "1"),
			`content_block_stop {"type":"content_block_stop","index":1}`, ended(`"end_turn"`, null), stop},
	},
	"two calls, text within the first": {
		[]string{chunk(role, null), call(`{"id":"c1","type":"function","index":0,"function":{"name":"f","arguments":""}}`), call(`{"index":0,"function":{"arguments":"{\"a\":"}}`), chunk(`{"content":" x"}`, null), call(`{"index":0,"function":{"arguments":"1}"}}`),
			call(`{"id":"c2","type":"function","index":1,"function":{"name":"g","arguments":"{}"}},{"index":0,"function":{"arguments":"late"}}`), chunk(`{}`, `"tool_calls"`), plain, done},
		[]string{start, tool("c1", "f", "0"), delta("input_json_delta", "partial_json", `"{\"a\":"`, "0"), delta("input_json_delta", "partial_json", `"1}"`, "0"), stop0,
			`content_block_start {"type":"content_block_start","content_block":{"type":"text","text":""},"index":1}`, delta("text_delta", "text", `" x"`, "1"), `content_block_stop {"type":"content_block_stop","index":1}`,
			tool("c2", "g", "2"), delta("input_json_delta", "partial_json", `"{}"`, "2"), `content_block_stop {"type":"content_block_stop","index":2}`, ended(`"tool_use"`, null), stop},
	},
	"a call that a stop string cut short": {
		[]string{chunk(role, null), call(`{"id":"c1","index":0,"function":{"name":"f","arguments":"{\"a"}}`), chunk(`{}`, `"stop","stop_reason":"b"`), plain, done},
		[]string{start, tool("c1", "f", "0"), delta("input_json_delta", "partial_json", `"{\"a"`, "0"), stop0, ended(`"stop_sequence"`, `"b"`), stop},
	},
	"a whole call, and a stop string": {
		[]string{chunk(role, null), call(`{"id":"c1","index":0,"function":{"name":"f","arguments":"{}"}}`), chunk(`{}`, `"stop","stop_reason":"b"`), plain, done},
		[]string{start, tool("c1", "f", "0"), delta("input_json_delta", "partial_json", `"{}"`, "0"), stop0, ended(`"tool_use"`, null), stop},
	},
	"an error": {
		[]string{chunk(role, null), chunk(`{"content":"a"}`, null), `data: {"error":{"message":"no \"x\"","type":"BadRequestError","param":null,"code":400}}` + "\n\n", done},
		[]string{start, text0, delta("text_delta", "text", `"a"`, "0"), stop0, `error {"type":"error","error":{"type":"invalid_request_error","message":"no \"x\""}}`},
	},
}

func TestEventsOfAMessage(t *testing.T) {
	for name, c := range streams {
		t.Run(name, func(t *testing.T) {
			var s messages.Stream
			out, err := s.Write([]byte(strings.Join(c.chat, "")), 20)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(said(t, out), "\n"), strings.Join(c.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// However the events of a chat come, and wherever its Stream is replaced by a clone, the message is the same; what the clone takes changes nothing for the
// Stream that it was made of.
func TestACloneContinuesAMessage(t *testing.T) {
	for name, c := range streams {
		for at := range len(c.chat) {
			s, all := &messages.Stream{}, ""
			for i, e := range c.chat {
				if i == at {
					other := s.Clone()
					for range 3 {
						_, _ = other.Write([]byte(chunk(`{"content":"never"}`, `"length"`)+call(`{"id":"x","index":0,"function":{"name":"n","arguments":"1"}}`)), 20)
					}
					s = s.Clone()
				}
				out, err := s.Write([]byte(e), 20)
				if err != nil {
					t.Fatal(err)
				}
				all += string(out)
			}
			if got, want := strings.Join(said(t, []byte(all)), "\n"), strings.Join(c.want, "\n"); got != want {
				t.Errorf("%s, cloned before event %d: got\n%s\nwant\n%s", name, at, got, want)
			}
		}
	}
}

func TestEventsThatAreNoneOfAMessage(t *testing.T) {
	for name, chat := range map[string]string{
		"no prompt": chunk(role, null), "half an event": `data: {"id":`, "no JSON": "data: x\n\n", "a named event": "event: a\ndata: {}\n\n", "no names": `data: {"choices":[]}` + "\n\n",
		"two choices": `data: {` + head + `"choices":[{"index":0,"delta":{}},{"index":1,"delta":{}}]}` + "\n\n", "a call without an index": chunk(role, null) + call(`{"id":"a"}`),
	} {
		prompt := 20
		if name == "no prompt" {
			prompt = 0
		}
		var s messages.Stream
		if out, err := s.Write([]byte(chat), prompt); !errors.Is(err, messages.ErrChunk) {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

// FuzzStream checks that nothing panics, and that blocks open and close in turn, with indexes without a gap.
func FuzzStream(f *testing.F) {
	for _, c := range streams {
		f.Add(strings.Join(c.chat, ""), uint64(1))
	}
	f.Fuzz(func(t *testing.T, chat string, seed uint64) {
		var s messages.Stream
		random := rand.New(rand.NewPCG(seed, 1))
		list := strings.SplitAfter(chat, "\n\n")
		if seed%2 == 1 { // another order
			random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		open, next := false, 0
		for _, e := range list {
			out, err := s.Write([]byte(e), 20)
			if len(out) > 0 {
				for _, one := range strings.Split(string(out), "\n\n") {
					switch {
					case strings.HasPrefix(one, "event: content_block_start"):
						if open || !strings.HasSuffix(one, `,"index":`+strconv.Itoa(next)+`}`) {
							t.Fatalf("block %d: %q", next, out)
						}
						open = true
					case strings.HasPrefix(one, "event: content_block_delta"):
						if !open {
							t.Fatalf("%q outside a block", one)
						}
					case strings.HasPrefix(one, "event: content_block_stop"):
						if !open {
							t.Fatalf("%q outside a block", one)
						}
						open = false
						next++
					}
				}
			}
			if err != nil {
				return
			}
		}
	})
}
