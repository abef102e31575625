package openai_test

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// large bodies of every shape that Memory must give back as Read does.
func largeBodies() map[string]string {
	long := strings.Repeat("once upon a time ", 500)
	return map[string]string{
		"chat":            `{"model":"m","stream":true,"messages":[{"role":"system","content":"` + long + `"},{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[{"type":"function"}],"max_tokens":9}`,
		"media":           `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:` + long + `"}}]}]}`,
		"text":            `{"model":"m","prompt":"` + long + `","n":2,"cache_salt":"s","priority":4}`,
		"escaped text":    `{"model":"\u006d","prompt":"a\n` + long + `","session_id":"me\t"}`,
		"ids":             `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat("17,", 3000), ",") + `]}`,
		"lists of ids":    `{"model":"m","prompt":[[1,2],[` + strings.TrimSuffix(strings.Repeat("17,", 3000), ",") + `]]}`,
		"batch":           `{"model":"m","prompt":["` + long + `","a\tb"]}`,
		"response":        `{"model":"m","input":"` + long + `","previous_response_id":"resp_1","max_output_tokens":3}`,
		"messages":        `{"model":"m","system":"` + long + `","metadata":{"user_id":"u"},"messages":[{"role":"user","content":"hi"}]}`,
		"equal keys":      `{"model":"a","messages":[],"model":"b","messages":[{"role":"user","content":"` + long + `"}]}`,
		"xargs":           `{"vllm_xargs":{"session_id":"x"},"messages":[{"role":"user","content":"` + long + `"}],"kv_transfer_params":{"a":1}}`,
		"byte order mark": "\xEF\xBB\xBF" + `{"messages":[{"role":"user","content":"` + long + `"}]}`,
		"no prompt":       `{"other":"` + long + `"}`,
	}
}

func TestARememberedBodyReadsAsTheFirstTime(t *testing.T) {
	headers := []http.Header{
		nil,
		{"X-Session-Id": {"s1"}, "X-Vllm-Priority": {"7"}},
		{"X-Session-Id": {"s2"}},
		{"X-Vllm-Priority": {"nonsense"}},
	}
	for name, text := range largeBodies() {
		for _, route := range []openai.Route{openai.RouteAny, openai.RouteChat, openai.RouteMessages, openai.RouteResponses, openai.RouteCompletions} {
			t.Run(fmt.Sprintf("%s as %s", name, route), func(t *testing.T) {
				memory := openai.NewMemory(1 << 20)
				for sight := range 6 {
					// Each sight has memory of its own, which is overwritten afterwards: nothing of an
					// older body may be in a newer request.
					body := []byte(text)
					p := openai.Params{Route: route, Header: headers[sight%len(headers)], SessionHeaders: []string{"x-session-id"}, Body: body}
					want := read(t, p)
					got, err := memory.Read(p)
					if err != nil {
						t.Fatal(err)
					}
					if known := got.Prompt.Digest != (prompt.Digest{}); known != (sight > 0) {
						t.Errorf("sight %d: has a digest: %v", sight, known)
					}
					got.Prompt.Digest = prompt.Digest{}
					if !reflect.DeepEqual(got, want) {
						t.Fatalf("sight %d:\ngot  %.300v\nwant %.300v", sight, got, want)
					}
					if g, w := got.WithModel("other"), want.WithModel("other"); !bytes.Equal(g, w) {
						t.Errorf("sight %d: an edit gives %.100q, want %.100q", sight, g, w)
					}
					clear(body)
				}
			})
		}
	}
}

func TestBodiesThatDifferInOneByteAreDifferent(t *testing.T) {
	memory := openai.NewMemory(1 << 20)
	text := []byte(largeBodies()["chat"])
	seen := map[prompt.Digest]int{}
	for i := range 200 {
		at := 100 + 31*i // within the long text
		body := bytes.Clone(text)
		body[at] = 'Z'
		for range 3 {
			got, err := memory.Read(openai.Params{Route: openai.RouteChat, Body: body})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Prompt.Messages[0], body[bytes.Index(body, []byte(`{"role":"s`)):bytes.Index(body, []byte(`,{"role":"u`))]) {
				t.Fatalf("byte %d: a message of another body", at)
			}
			if d := got.Prompt.Digest; d != (prompt.Digest{}) {
				if before, known := seen[d]; known && before != at {
					t.Fatalf("bodies that differ at %d and %d have one digest", before, at)
				}
				seen[d] = at
			}
		}
	}
	if len(seen) != 200 {
		t.Errorf("%d digests for 200 bodies", len(seen))
	}
}

func TestFilledFormsAreNotRemembered(t *testing.T) {
	memory := openai.NewMemory(1 << 20)
	form := largeBodies()["chat"]
	for i := range 100 {
		body := []byte(strings.Replace(form, "once upon", fmt.Sprintf("once %04d", i), 1))
		if _, err := memory.Read(openai.Params{Route: openai.RouteChat, Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	if n := memory.Remembered(); n != 0 {
		t.Errorf("%d of 100 bodies that came once are remembered", n)
	}
	for range 3 {
		if _, err := memory.Read(openai.Params{Route: openai.RouteChat, Body: []byte(form)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := memory.Remembered(); n != 1 {
		t.Errorf("%d bodies are remembered, want the one that came three times", n)
	}
}

func TestOnlyWholeAndLargeBodiesAreRemembered(t *testing.T) {
	memory := openai.NewMemory(1 << 20)
	body := []byte(largeBodies()["chat"])
	for range 3 {
		for _, p := range []openai.Params{
			{Body: []byte(`{"messages":[{"role":"user","content":"hi"}]}`)},
			{Body: body[:len(body)-9], Truncated: true},
		} {
			got, err := memory.Read(p)
			if err != nil || got.Prompt.Digest != (prompt.Digest{}) {
				t.Errorf("%d bytes, truncated %v: digest %v, error %v", len(p.Body), p.Truncated, got.Prompt.Digest, err)
			}
		}
		if _, err := memory.Read(openai.Params{Body: body[:len(body)-9]}); err == nil {
			t.Error("a body that is no JSON was read")
		}
	}
	var none *openai.Memory
	if got, err := none.Read(openai.Params{Body: body}); err != nil || len(got.Prompt.Messages) != 2 {
		t.Errorf("without a memory: %v, %v", got, err)
	}
}

func TestAMemoryIsSharedByManyReaders(t *testing.T) {
	memory := openai.NewMemory(64 << 10) // too small for all of them
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 300 {
				for name, text := range largeBodies() {
					body := []byte(text)
					if _, err := memory.Read(openai.Params{Body: body}); err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkMemory(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"model":"m","messages":[`)
	for i := range 80 {
		fmt.Fprintf(&text, `{"role":"user","content":"%d %s"},`, i, strings.Repeat("lorem ipsum ", 250))
	}
	body := []byte(strings.TrimSuffix(text.String(), ",") + `],"stream":true}`)
	for name, memory := range map[string]*openai.Memory{"first": nil, "again": openai.NewMemory(1 << 20)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := memory.Read(openai.Params{Route: openai.RouteChat, Body: body}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
