package openai_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func seeds(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9\ud83d\ude00"}]}],"stream":true,"max_tokens":5}`,
		`{"prompt":[1,2,3],"n":2,"user":"x","kv_transfer_params":{"a":[{}]}}`,
		`{"prompt":[["a"],[1]],"prompt":["a","b"],"vllm_xargs":{"session_id":"s"}}`,
		` { "a" : [ ] , "b" : { } , "c" : -1.5e+3 , "d" : null , "model" : "x" } `,
		`{"a":"\\\"","b":NaN,"model":"\u006d"}`, `[1,2`, `{"model":`, "\xef\xbb\xbf{}", `{"":"","":1}`,
	} {
		f.Add([]byte(s))
	}
}

// FuzzRead checks that nothing panics, that whatever encoding/json accepts is accepted and
// read to the same values, and that a truncated reading never sees more than the whole one.
func FuzzRead(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := openai.Read(openai.Params{Body: body})
		openai.Read(openai.Params{Body: body, Truncated: true})
		var std map[string]json.RawMessage
		stdErr := json.Unmarshal(body, &std)
		if stdErr == nil && std != nil && utf8.Valid(body) && err != nil {
			if strings.Contains(err.Error(), "nested too deep") || strings.Contains(err.Error(), "model must be") {
				return
			}
			t.Fatalf("%q: encoding/json reads it, we say %v", body, err)
		}
		if err != nil || stdErr != nil {
			return
		}
		for name, raw := range std {
			if !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError) {
				continue
			}
			if !bytes.Equal(bytes.TrimSpace(r.Raw(name)), bytes.TrimSpace(raw)) {
				t.Errorf("%q: member %q: got %q, want %q", body, name, r.Raw(name), raw)
			}
		}
		var model, text any
		json.Unmarshal(std["model"], &model)
		json.Unmarshal(std["prompt"], &text)
		if want, ok := model.(string); ok && utf8.Valid(body) && r.Model != want {
			t.Errorf("%q: model %q, want %q", body, r.Model, want)
		}
		if want, ok := text.(string); ok && r.Prompt.Kind == prompt.KindText && r.Prompt.API == prompt.APICompletions && utf8.Valid(body) && r.Prompt.Text != want {
			t.Errorf("%q: prompt %q, want %q", body, r.Prompt.Text, want)
		}
	})
}

// FuzzEdit checks that an edit changes what it names and leaves every other byte as it was.
func FuzzEdit(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := openai.Read(openai.Params{Body: body})
		if err != nil {
			return
		}
		const name = "new \"name\"\n"
		edited := r.Edit(openai.ModelEdit(name))
		again, err := openai.Read(openai.Params{Body: edited})
		if err != nil || again.Model != name {
			t.Fatalf("%q became %q: %v", body, edited, err)
		}
		if old := r.Raw("model"); old != nil { // undone, it must be the same bytes again
			if undone := again.Edit(openai.Edit{Name: "model", Value: old}); !bytes.Equal(undone, body) {
				t.Errorf("%q became %q and then %q", body, edited, undone)
			}
		} else if undone := again.Edit(openai.Edit{Name: "model"}); !bytes.Equal(undone, body) && len(again.Body) > len(body) {
			// Removing an added member takes the comma with it, and nothing else.
			if !bytes.Equal(bytes.Join(bytes.Fields(undone), nil), bytes.Join(bytes.Fields(body), nil)) {
				t.Errorf("%q became %q and then %q", body, edited, undone)
			}
		}
		if with := r.WithPromptIDs([]uint32{1, 2}); !bytes.Equal(with, body) {
			if r2, err := openai.Read(openai.Params{Route: r.Route, Body: with}); err != nil {
				t.Errorf("%q became %q: %v", body, with, err)
			} else if r.Route == openai.RouteCompletions && r2.Prompt.Kind != prompt.KindIDs {
				t.Errorf("%q became %q", body, with)
			}
		}
	})
}

func megabyte(content string) []byte {
	text := strings.Repeat(content, 1<<20/len(content))
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return []byte(`{"model":"m","stream":true,"messages":[{"role":"system","content":"be kind"},{"role":"user","content":` + string(quoted) + `}],"max_tokens":100}`)
}

// BenchmarkRead reads bodies of one megabyte. The aim is 0.3 ms for one large string.
func BenchmarkRead(b *testing.B) {
	ids := append([]byte(`{"model":"m","prompt":[`), bytes.Repeat([]byte("123456,"), 1<<20/7)...)
	ids = append(ids, "1]}"...)
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"plain", megabyte("the quick brown fox jumps over the lazy dog ")},
		{"lines", megabyte("func main() {\n\tfmt.Println(\"hello, world\")\n}\n")},
		{"chinese", megabyte("人工智能是计算机科学的一个分支。")},
		{"ids", ids},
		{"small", []byte(`{"model":"m","stream":true,"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}],"max_tokens":100,"temperature":0.7}`)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := openai.Read(openai.Params{Route: openai.RouteAny, Body: c.body}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("plain-encoding-json-Valid", func(b *testing.B) {
		body := megabyte("the quick brown fox jumps over the lazy dog ")
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if !json.Valid(body) {
				b.Fatal("invalid")
			}
		}
	})
}
