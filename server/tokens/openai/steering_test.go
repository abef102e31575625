package openai_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestSteeringMembersAreCutOut(t *testing.T) {
	const kv, ec = openai.SteersKV, openai.SteersEC
	for _, c := range []struct {
		name  string
		route openai.Route
		body  string
		want  string
		found openai.Steering
	}{
		{"nothing to cut", openai.RouteChat, `{ "model":"m","vllm_xargs":{"session_id":"s"},"request_id":"r" }`, "", 0},
		{"null stays", openai.RouteChat, `{"kv_transfer_params":null,"ec_transfer_params" : null}`, "", 0},
		{"the only member", openai.RouteCompletions, `{ "kv_transfer_params" : {"do_remote_prefill":true} }`, `{  }`, kv},
		{"first", openai.RouteChat, `{"kv_transfer_params":{"a":1}, "model":"m"}`, `{"model":"m"}`, kv},
		{"in the middle", openai.RouteChat, `{"model":"m", "ec_transfer_params":{} ,"n":1.50}`, `{"model":"m" ,"n":1.50}`, ec},
		{"last", openai.RouteResponses, "{\"model\":\"m\"\n,\"kv_transfer_params\":1 }", `{"model":"m" }`, kv},
		{"twins around", openai.RouteMessages, `{"kv_transfer_params":{"x":1},"a":1,"kv_transfer_params":{"y":1},"ec_transfer_params":2,"b":NaN}`, `{"a":1,"b":NaN}`, kv | ec},
		{"a twin that is null", openai.RouteChat, `{"kv_transfer_params":{"x":1},"kv_transfer_params":null}`, `{"kv_transfer_params":null}`, kv},
		{"escaped", openai.RouteChat, `{"a":1,"kv_transfer\u005fparams":{},"\u006bv_transfer_params":{}}`, `{"a":1}`, kv},
		{"in capitals", openai.RouteChat, `{"a":1,"KV_Transfer_Params":{},"\u212av_tran\u017ffer_param\u017f":{}}`, `{"a":1}`, kv},
		{"after a mark", openai.RouteChat, "\xef\xbb\xbf{\"kv_transfer_params\":{},\"a\":1}", "\xef\xbb\xbf{\"a\":1}", kv},
		{"in xargs", openai.RouteChat, `{"vllm_xargs":{"kv_transfer_params":"x","session_id":"s"},"a":1}`, `{"vllm_xargs":{"session_id":"s"},"a":1}`, kv},
		{"in both xargs", openai.RouteChat, `{"vllm_xargs":{"kv_transfer_params":"x"},"vllm_xargs":{ "a":1 , "ec_transfer_params":"x"}}`,
			`{"vllm_xargs":{},"vllm_xargs":{ "a":1}}`, kv | ec},
		{"in sampling_params", openai.RouteOther, `{"token_ids":[1],"sampling_params":{"n":1,"extra_args":{"kv_transfer_params":{"a":[1]},"b":2}}}`,
			`{"token_ids":[1],"sampling_params":{"n":1,"extra_args":{"b":2}}}`, kv},
		{"not flattened by its client", openai.RouteChat, `{"extra_body":{"kv_transfer_params":{},"vllm_xargs":{"ec_transfer_params":1}}}`,
			`{"extra_body":{"vllm_xargs":{}}}`, kv | ec},
		{"a message that speaks of it", openai.RouteChat, `{"messages":[{"role":"user","content":"x","kv_transfer_params":{}}]}`, "", 0},
		{"ids of a chat", openai.RouteChat, `{"kv_transfer_params":{"prompt_token_ids":[1, 2]}}`, "", 0},
		{"ids among others", openai.RouteMessages, `{"a":1,"kv_transfer_params":{"remote_host":"x","prompt_token_ids":[ 1,2 ],"remote_port":1}}`,
			`{"a":1,"kv_transfer_params":{"prompt_token_ids":[ 1,2 ]}}`, kv},
		{"ids twice", openai.RouteChat, `{"kv_transfer_params":{"prompt_token_ids":{"x":1},"prompt_token_ids":[7]}}`, `{"kv_transfer_params":{"prompt_token_ids":[7]}}`, kv},
		{"ids that are none", openai.RouteChat, `{"a":1,"kv_transfer_params":{"prompt_token_ids":[1,{"a":2}]}}`, `{"a":1}`, kv},
		{"ids before a twin", openai.RouteChat, `{"kv_transfer_params":{"prompt_token_ids":[1]},"kv_transfer_params":{"remote_host":"x"}}`, `{}`, kv},
		{"ids on another route", openai.RouteCompletions, `{"kv_transfer_params":{"prompt_token_ids":[1]},"a":1}`, `{"a":1}`, kv},
		{"an id with addresses", openai.RouteChat, `{"request_id":"___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:2_x","a":1}`, `{"a":1}`, openai.SteersID},
		{"an id with addresses, escaped, with a twin", openai.RouteChat, `{"request_id":"___prefill_\u0061ddr_h:1","request_id":"r"}`, `{"request_id":"r"}`, openai.SteersID},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := read(t, openai.Params{Route: c.route, Body: []byte(c.body)})
			got, found := r.WithoutSteering()
			want := c.want
			if want == "" {
				want = c.body
			}
			if string(got) != want || found != c.found {
				t.Errorf("%s\n became %s (%v),\n  want %s (%v)", c.body, got, found.Names(), want, c.found.Names())
			}
		})
	}
}

// Carriers in carriers, or full of members, must cost no more than reading them.
func TestSteeringOfLargeCarriersIsLinear(t *testing.T) {
	deep := strings.Repeat(`{"extra_body":`, 200) + `{"kv_transfer_params":1}` + strings.Repeat("}", 200)
	wide := `{"vllm_xargs":{` + strings.Repeat(`"kv_transfer_params":1,`, 50_000) + `"a":1}}`
	for _, body := range []string{deep, wide} {
		r := read(t, openai.Params{Body: []byte(body)})
		if allocs := testing.AllocsPerRun(1, func() { r.WithoutSteering() }); allocs > 30 {
			t.Errorf("%d bytes: %v allocations", len(body), allocs)
		}
	}
}

func TestBodiesWithoutSteeringCostNothing(t *testing.T) {
	r := read(t, openai.Params{Route: openai.RouteChat, Body: []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":100,"temperature":0.7,"stream_options":{"include_usage":true}}`)})
	if allocs := testing.AllocsPerRun(100, func() { r.WithoutSteering() }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkWithoutSteering(b *testing.B) {
	r, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":100,"temperature":0.7,"stream_options":{"include_usage":true}}`)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.WithoutSteering()
	}
}

// steersAny is a reader that takes any of two equal members, matches names as encoding/json does, and looks where engines look.
func steersAny(t *testing.T, body []byte, depth int) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.Token()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return
		}
		name, _ := key.(string)
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return
		}
		switch {
		case strings.EqualFold(name, "kv_transfer_params"), strings.EqualFold(name, "ec_transfer_params"):
			if string(value) != "null" && (depth > 0 || !onlyPromptIDs(value)) {
				t.Errorf("%s is left: %s", name, value)
			}
		case strings.EqualFold(name, "request_id"):
			var id string
			if json.Unmarshal(value, &id) == nil && openai.MarksAddress(id) {
				t.Errorf("%s is left: %s", name, value)
			}
		case depth < 3 && value[0] == '{' && slices.ContainsFunc([]string{"vllm_xargs", "extra_args", "extra_body", "sampling_params"}, func(one string) bool { return strings.EqualFold(one, name) }):
			steersAny(t, value, depth+1)
		}
	}
}

func onlyPromptIDs(value []byte) bool {
	var any map[string]json.RawMessage
	if json.Unmarshal(value, &any) != nil || len(any) != 1 {
		return false
	}
	var ids []uint32
	return json.Unmarshal(any["prompt_token_ids"], &ids) == nil && ids != nil
}

// FuzzWithoutSteering checks that no reader sees a member that steers engines in what is forwarded, that it is still the JSON
// that it was, and that bodies without such members are not touched.
func FuzzWithoutSteering(f *testing.F) {
	seeds(f)
	for _, s := range []string{
		`{"kv_transfer\u005fparams":{"a":1},"x":[1,2],"kv_transfer_params":null,"vllm_xargs":{"ec_transfer_params":"x","k":1}}`,
		`{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1,2],"remote_host":"x"},"request_id":"_prefill_addr_"}`,
		`{"sampling_params":{"extra_args":{"KV_TRANSFER_PARAMS":{}}},"a":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, route := range []openai.Route{openai.RouteChat, openai.RouteCompletions, openai.RouteOther} {
			r, err := openai.Read(openai.Params{Route: route, Body: body})
			if err != nil {
				return
			}
			out, found := r.WithoutSteering()
			if found == 0 && !bytes.Equal(out, body) {
				t.Fatalf("%q became %q", body, out)
			}
			again, err := openai.Read(openai.Params{Route: route, Body: out})
			if err != nil {
				t.Fatalf("%q became %q: %v", body, out, err)
			}
			if _, found = again.WithoutSteering(); found != 0 {
				t.Fatalf("%q became %q, which has %v", body, out, found.Names())
			}
			if json.Valid(body) && utf8.Valid(body) {
				if !json.Valid(out) {
					t.Fatalf("%q became %q", body, out)
				}
				steersAny(t, out, 0)
				sameRest(t, body, out)
			}
		}
	})
}

// sameRest checks that every other member has its value.
func sameRest(t *testing.T, body, out []byte) {
	t.Helper()
	var before, after map[string]json.RawMessage
	if json.Unmarshal(body, &before) != nil || json.Unmarshal(out, &after) != nil {
		return
	}
	for name, value := range before {
		switch lower := strings.ToLower(name); {
		case strings.HasSuffix(lower, "params"), strings.HasPrefix(lower, "vllm"), strings.HasPrefix(lower, "extra_"), lower == "request_id", strings.Contains(name, "\u017f"), strings.Contains(name, "\u212a"):
		case !bytes.Equal(value, after[name]):
			t.Errorf("%q: %q became %q", name, value, after[name])
		}
	}
}
