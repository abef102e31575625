package openai_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// alike are events that resemble each other, and some that nearly do.
func alike() []string {
	chat := func(delta, rest string) string {
		return `{"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":null,` + rest
	}
	return []string{
		chat(`{"role":"assistant","content":""}`, `"token_ids":null}],"prompt_token_ids":[1,2]}`),
		chat(`{"content":"a"}`, `"token_ids":[7]}]}`),
		chat(`{"content":"\"é\\u00e9 \\\\"}`, `"token_ids":[70,8]}]}`),
		chat(`{"content":""}`, `"token_ids":[7]}]}`),
		chat(`{"content":null}`, `"token_ids":[7]}]}`),
		chat(`{"content":"a"}`, `"token_ids":null}]}`),
		chat(`{"content":"a"}`, `"token_ids":[]}]}`),
		chat(`{"content":"a"}`, `"token_ids":[7, 8]}]}`),
		chat(`{"content":"a","reasoning":"b"}`, `"token_ids":[7]}]}`),
		chat(`{"content":"a","content":"b"}`, `"token_ids":[7]}]}`),
		chat(`{"content":"a"}`, `"token_ids":[1],"token_ids":[7]}]}`),
		chat(`{"content":"a"}`, `"token_ids":[7]}],"usage":{"prompt_tokens":1}}`),
		chat(`{"content":"a"}`, `"token_ids":[7]},{"index":1}]}`),
		chat(`{"content":"a"}`, `"token_ids":[7]}],"error":{"code":500}}`),
		`{"id":"a","choices":[{"index":0,"text":"x","finish_reason":null,"prompt_token_ids":null,"token_ids":[1]}]}`,
		`{"id":"a","choices":[{"index":0,"text":"token_ids\":[1]","finish_reason":null,"prompt_token_ids":null,"token_ids":[12,3]}]}`,
		`{"id":"a","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[1],"weight_versions":null}],"kv_transfer_params":null}`,
		`{"id":"a","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[1]}],"kv_transfer_params":{"a":1}}`,
		`{"id":"a","choices":[{"index":0,"token_ids":[1],"text":"x"}]}`,
		`{"id":"b","choices":[{"index":0,"text":"x","finish_reason":"stop","token_ids":[1]}]}`,
	}
}

// Whatever events came before, an event is read as it is read alone: also one that is like the last but for one byte.
func TestEventsAreReadAsAlone(t *testing.T) {
	check := func(t *testing.T, s *openai.Chunks, data string) {
		t.Helper()
		var got, want openai.Chunk
		gotOK, wantOK := s.Read([]byte(data), &got), openai.ReadChunk([]byte(data), &want)
		if gotOK != wantOK || wantOK && !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\n got %+v, %v\nwant %+v, %v", data, got, gotOK, want, wantOK)
		}
	}
	for n, before := range alike() {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for _, data := range alike() {
				var s openai.Chunks
				check(t, &s, before)
				check(t, &s, data)
				check(t, &s, data)
			}
			for at := range before {
				for _, b := range []byte(`"\]},0 x` + "\n") {
					var s openai.Chunks
					check(t, &s, before)
					check(t, &s, before[:at]+string(b)+before[at+1:])
					check(t, &s, before[:at]+string(b)+before[at:])
				}
				var s openai.Chunks
				check(t, &s, before)
				check(t, &s, before[:at])
			}
		})
	}
}

func FuzzChunks(f *testing.F) {
	for i, s := range alike() {
		f.Add([]byte(s), []byte(alike()[(i+1)%len(alike())]))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var s openai.Chunks
		var got, want openai.Chunk
		s.Read(first, &got)
		gotOK, wantOK := s.Read(second, &got), openai.ReadChunk(second, &want)
		if gotOK != wantOK || wantOK && !reflect.DeepEqual(got, want) {
			t.Fatalf("after %q, %q is read as %+v, %v, want %+v, %v", first, second, got, gotOK, want, wantOK)
		}
	})
}
