package vocab_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

func FuzzDecodeUndoesEncode(f *testing.F) {
	for _, s := range []string{"", "Hello, world", "  two  spaces ", "naïve café 你好 🚀", "<|im_start|>user\nx<|im_end|>", "\xff\xfe", "don't STOP 123"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids := vocab.Encode(nil, s)
		if got := string(vocab.Decode(nil, ids, false)); got != s {
			t.Fatalf("got %q, want %q", got, s)
		}
		for _, id := range ids {
			if id >= vocab.Size {
				t.Fatalf("id %d is not below %d", id, vocab.Size)
			}
		}
		if again := vocab.Encode(nil, string(vocab.Decode(nil, ids, false))); !slices.Equal(again, ids) {
			t.Fatalf("encoding %q again gives other ids", s)
		}
	})
}

func message(role, content string) vocab.Message {
	return vocab.Message{Role: role, Content: jsontext.Value(content)}
}

func TestTemplate(t *testing.T) {
	tool := jsontext.Value(`{ "type": "function" }`)
	call := vocab.Message{Role: "assistant", Content: jsontext.Value("null"), ToolCalls: make([]vocab.Call, 1)}
	call.ToolCalls[0].Function.Name = "f"
	call.ToolCalls[0].Function.Arguments = jsontext.Value(`"{\"a\":1}"`)
	for _, c := range []struct {
		name string
		chat vocab.Chat
		want string
	}{
		{"one turn", vocab.Chat{Messages: []vocab.Message{message("user", `"hi"`)}, GenerationPrompt: true},
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{"system and tools", vocab.Chat{Messages: []vocab.Message{message("system", `"be brief"`), message("user", `[{"type":"text","text":"hi"}]`)}, Tools: []jsontext.Value{tool}},
			"<|im_start|>system\nbe brief\n\n# Tools\n\nYou may call these functions:\n<tools>\n{\"type\":\"function\"}\n</tools><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"},
		{"no thoughts", vocab.Chat{Messages: []vocab.Message{message("user", `"hi"`)}, GenerationPrompt: true, Kwargs: map[string]jsontext.Value{"enable_thinking": jsontext.Value("false"), "unknown": jsontext.Value("1")}},
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"open end", vocab.Chat{Messages: []vocab.Message{message("user", `"hi"`), message("assistant", `"we"`)}, Continue: true},
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nwe"},
		{"tool turns", vocab.Chat{Messages: []vocab.Message{message("user", `"hi"`), call, message("tool", `"7"`)}},
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := vocab.Render(c.chat)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(vocab.Decode(nil, out.IDs, false)); got != c.want {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestImagesTakeTheirPlace(t *testing.T) {
	out, err := vocab.Render(vocab.Chat{Messages: []vocab.Message{message("user", `[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:a"}},{"type":"image_url","image_url":{"url":"data:b"}}]`)}})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Items) != 2 || out.Items[0].ID == out.Items[1].ID || len(out.Items[0].ID) != 64 {
		t.Fatalf("items %+v", out.Items)
	}
	for _, it := range out.Items {
		for _, id := range out.IDs[it.Offset : it.Offset+it.Length] {
			if id != vocab.ImagePad {
				t.Errorf("item at %d covers id %d", it.Offset, id)
			}
		}
	}
}

func TestTemplateRefuses(t *testing.T) {
	one := []vocab.Message{message("user", `"a"`)}
	if _, err := vocab.Render(vocab.Chat{}); !errors.Is(err, vocab.ErrNoMessages) {
		t.Errorf("no messages: %v", err)
	}
	if _, err := vocab.Render(vocab.Chat{Messages: one, GenerationPrompt: true, Continue: true}); !errors.Is(err, vocab.ErrBothPrompts) {
		t.Errorf("both prompts: %v", err)
	}
	if _, err := vocab.Render(vocab.Chat{Messages: []vocab.Message{message("user", `7`)}}); err == nil || !strings.Contains(err.Error(), "message 0") {
		t.Errorf("a number as content: %v", err)
	}
}

func BenchmarkEncode(b *testing.B) {
	var text strings.Builder
	for i := range 60_000 {
		text.WriteString(vocab.Word(uint64(i * i)))
		text.WriteByte(' ')
	}
	s := text.String()
	b.SetBytes(int64(len(s)))
	var ids []uint32
	for b.Loop() {
		ids = vocab.Encode(ids[:0], s)
	}
	b.ReportMetric(float64(len(ids)), "tokens")
}
