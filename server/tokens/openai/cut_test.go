package openai_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// TestNoFaultOfACutBodyIsTheCallers: wherever a proxy cuts a body, what is there is read.
func TestNoFaultOfACutBodyIsTheCallers(t *testing.T) {
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"system","content":"ein längerer Gruß 世界 🌍 \ud83c\udf0d \"x\" \\"},{"role":"user","content":[{"type":"text","text":"wörtlich"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"max_tokens":5}`,
		`{"prompt":"世界 🌍 \ud83c\udf0d\ud83c","model":"m"}`, `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"世界"}]}]}`,
		`{"system":"s","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"世界"}]}]}]}`,
		`{"prompt":["世","界"]}`, `{"prompt":[1,2,3]}`, `{"prompt":[[1,2],[3]]}`, `{"model":5,"messages":"x"}`, `no JSON`, `{"prompt":tru,`, "\x1f\x8b\x08 gzip", `[1,2`, ``,
	} {
		for cut := range len(body) + 1 {
			for route := openai.RouteAny; route <= openai.RouteMessages; route++ {
				r, err := openai.Read(openai.Params{Route: route, Body: []byte(body[:cut]), Truncated: true})
				if err != nil {
					t.Fatalf("%s as %s, cut at %d: %v", body, route, cut, err)
				}
				p := &r.Prompt
				if !utf8.ValidString(p.Text) || strings.ContainsRune(p.Text, utf8.RuneError) && !strings.Contains(body, `\ud83c"`) {
					t.Errorf("%s, cut at %d: the text is %q", body, cut, p.Text)
				}
				for _, m := range p.Messages {
					if !json.Valid(m) || !utf8.Valid(m) || strings.HasSuffix(string(m), `\ud83c"}`) {
						t.Errorf("%s, cut at %d: the message is %s", body, cut, m)
					}
				}
				if p.Partial && p.Kind != prompt.KindNone && !json.Valid(p.Body) {
					t.Errorf("%s, cut at %d: the part that was read is %s", body, cut, p.Body)
				}
			}
		}
	}
}

func TestACutMessageIsClosedWhereItIsCut(t *testing.T) {
	const chat = `{"messages":[`
	for cut, want := range map[string][]string{
		`{"role":"user","content":"Once upon a ti`:                                       {`{"role":"user","content":"Once upon a ti"}`},
		"{\"role\":\"user\",\"content\":\"gr\xc3":                                        {`{"role":"user","content":"gr"}`},
		"{\"role\":\"user\",\"content\":\"\xf0\x9f\x8c":                                  {`{"role":"user","content":""}`},
		`{"role":"user","content":"x\u00`:                                                {`{"role":"user","content":"x"}`},
		`{"role":"user","content":"x\ud83c`:                                              {`{"role":"user","content":"x"}`},
		`{"role":"user","content":"x\ud83c\udf`:                                          {`{"role":"user","content":"x"}`},
		`{"role":"user","content":"x\\ud83c`:                                             {`{"role":"user","content":"x\\ud83c"}`},
		`{"role":"user","content":"x"`:                                                   {`{"role":"user","content":"x"}`},
		`{"role":"user","content":"x","name":"b`:                                         {`{"role":"user","content":"x"}`},
		`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b`:  {`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`},
		`{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","ima`:  {`{"role":"user","content":[{"type":"text","text":"a"}]}`},
		`{"role":"user","content":[{"type":"text","text":"a"`:                            {`{"role":"user","content":[{"type":"text","text":"a"}]}`},
		`{"role":"user","content":[{"type":"tex`:                                         nil,
		`{"role":"us`:                                                                    nil,
		`{"role":"user","content":nu`:                                                    nil,
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r`: {`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]}`},
		`{"role":"system","content":"s"},{"role":"user","content":"u`:                    {`{"role":"system","content":"s"}`, `{"role":"user","content":"u"}`},
		`{"role":"system","content":"s"},{"role":"user"`:                                 {`{"role":"system","content":"s"}`},
	} {
		r := read(t, openai.Params{Route: openai.RouteChat, Body: []byte(chat + cut), Truncated: true})
		var got []string
		for _, m := range r.Prompt.Messages {
			got = append(got, string(m))
		}
		if strings.Join(got, ",") != strings.Join(want, ",") || (r.Prompt.Kind == prompt.KindChat) != (len(want) > 0) || !r.Prompt.Partial {
			t.Errorf("%s: the messages are %s, want %s", cut, got, want)
		}
	}
	if _, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(chat + `{"role":"user","content":"x`)}); err == nil {
		t.Error("a whole body that ends too early is read")
	}
}
