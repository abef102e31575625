package router_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// strict is a tokenizer that takes only UTF-8 and a conversation that a user's message ends.
func strict(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in struct {
		Messages []struct{ Role, Content string }
		Prompt   string
	}
	if json.Unmarshal(body, &in) != nil || strings.ContainsRune(string(body), '\uFFFD') || len(in.Messages) > 0 && in.Messages[len(in.Messages)-1].Role != "user" {
		text(400, roles)(w, r)
		return
	}
	text(200, `{"count":99,"max_model_len":131072,"tokens":[`+strings.Repeat("7,", 98)+`7]}`)(w, r)
}

// TestACutBodyIsChosenFor: a body that a proxy cut off is never refused for what the cut did to it, and what
// is there of its prompt is the key.
func TestACutBodyIsChosenFor(t *testing.T) {
	for name, tc := range map[string]struct {
		route openai.Route
		body  string
		keyed bool // there are token ids
	}{
		"in the first message":      {openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"Once upon a`, true},
		"in a character":            {openai.RouteChat, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Gr\xc3", true},
		"in a prompt's character":   {openai.RouteCompletions, "{\"model\":\"m\",\"prompt\":\"\xf0\x9f\x8c\x8d \xf0\x9f", true},
		"in an escaped character":   {openai.RouteCompletions, `{"model":"m","prompt":"x \ud83c`, true},
		"behind the assistant":      {openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},`, true},
		"in the assistant's words":  {openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b`, true},
		"in Anthropic's format":     {openai.RouteMessages, `{"model":"m","max_tokens":9,"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"a`, true},
		"in a response's input":     {openai.RouteResponses, `{"model":"m","instructions":"s","input":[{"role":"user","content":"a`, true},
		"where nothing can be read": {openai.RouteAny, `{"messages":[{"ro`, false},
		"no JSON":                   {openai.RouteAny, "\x1f\x8b\x08", false},
		"a system message only":     {openai.RouteChat, `{"model":"m","messages":[{"role":"system","content":"a`, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.engines[0].tokenizes(strict)
			a, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: []byte(tc.body), Route: tc.route, Truncated: true, FullSize: 1 << 20}})
			if err != nil {
				t.Fatalf("Choose() = %v", err)
			}
			if got := len(a.Encoding.IDs) > 0; got != tc.keyed || tc.keyed && (!a.Encoding.Partial || a.Encoding.Source != tokenizer.SourceTokenize) {
				t.Errorf("%d ids from %s (%s), want some: %v", len(a.Encoding.IDs), a.Encoding.Source, a.Encoding.Reason, tc.keyed)
			}
			if a.Decision.PromptTokens < 1<<14 || !a.Decision.Estimated {
				t.Errorf("%d tokens, estimated %v; want what a body of 1 MiB stands for", a.Decision.PromptTokens, a.Decision.Estimated)
			}
		})
	}
}

// The load booked is that of the whole body, as far as the proxy tells its size.
func TestTheLoadOfACutBodyIsThatOfTheWhole(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 100)
	tokens := func(full int64) int {
		f := start(t, 1, nil)
		f.engines[0].tokenizes(strict)
		a, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: []byte(body), Route: openai.RouteChat, Truncated: true, FullSize: full}})
		must(t, err)
		return a.Decision.PromptTokens
	}
	part := tokens(0)
	if whole := tokens(10 * int64(len(body))); part < 50 || whole < 9*part || whole > 11*part {
		t.Errorf("%d tokens of the part, %d of a body ten times as long", part, whole)
	}
	if huge := tokens(1 << 60); huge <= 0 {
		t.Errorf("%d tokens of an absurd size", huge)
	}
}

func TestACutBodyWithoutItsModelIsTooLarge(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			io.WriteString(w, `{"version":"0.17.0"}`)
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"n","object":"model","created":1,"owned_by":"vllm","root":"n","parent":null,"max_model_len":4096}]}`)
		}
	}))
	t.Cleanup(other.Close)
	f := start(t, 1, func(_ *router.Params, _ *chooser.Config, r *registry.Config) {
		r.Replicas = append(r.Replicas, registry.Spec{ID: "other", URL: other.URL, BlockSize: 16, Blocks: 1000})
	})
	f.eventually("both models are known", func() bool { return len(f.params.Registry.Snapshot().Models()) == 2 })
	_, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: []byte(`{"messages":[{"role":"user","content":"a`), Route: openai.RouteChat, Truncated: true}})
	if e := apierror.From(err); e == nil || e.HTTPStatus() != 413 {
		t.Errorf("Choose() = %v, want 413", err)
	}
	if _, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{Body: []byte(`{"messages":[{"ro`), Route: openai.RouteChat, Truncated: true}}); err != nil {
		t.Errorf("with a model beside the body: %v", err)
	}
}
