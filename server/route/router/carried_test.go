package router_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// When the router stops, it ends streams that their clients continue elsewhere. A stream that no router continues comes to its end.
func TestARouterThatStopsEndsStreamsThatContinueElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version string
		call    *intake.Call
		ends    bool
	}{
		"a chat":                          {"0.17.0", chat(asking + "}"), true},
		"a chat with tools, by token ids": {"0.33.0", chat(asking + `,"tools":[{"type":"function"}]}`), true},
		"a chat with tools, without ids":  {"0.17.0", chat(asking + `,"tools":[{"type":"function"}]}`), false},
		"a sampled chat that is bound":    {"0.33.0", chat(asking + `,"response_format":{"type":"json_object"}}`), false},
		"a sampled response":              {"0.33.0", &intake.Call{Route: openai.RouteResponses, Body: []byte(`{"model":"m","stream":true,"input":"hi"}`)}, false},
		"a sampled message":               {"0.33.0", sampledMessage(), true},
		"a message at temperature 0":      {"0.33.0", &intake.Call{Route: openai.RouteMessages, Body: []byte(`{"model":"m","stream":true,"temperature":0,"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := startVersion(t, 2, c.version, nil)
			begun, left := make(chan struct{}), make(chan struct{})
			f.script(func(w http.ResponseWriter, r *http.Request) {
				first, rest := []string{"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"a\",\"created_at\":1}}\n\n"}, []string{"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"a\"}}\n\n"}
				switch r.URL.Path {
				case "/v1/chat/completions":
					first, rest = hello(), []string{event("chat", "one", "!", "[12]", "stop"), chatUsage, end}
				case "/v1/messages":
					first, rest = strings.SplitAfter(ownEvents, "\n\n")[:1], strings.SplitAfter(ownEvents, "\n\n")[1:2]
				case "/v1/messages/render", "/v1/responses/render", "/v1/chat/completions/render":
					text(200, `{"request_id":"r","token_ids":[1,2,3,4],"features":null,"sampling_params":{}}`)(w, r)
					return
				}
				streaming(first, func(w http.ResponseWriter, r *http.Request) {
					close(begun)
					select {
					case <-left:
					case <-r.Context().Done():
						return
					}
					for _, e := range rest {
						_, _ = w.Write([]byte(e))
					}
				})(w, r)
			})
			go func() {
				<-begun
				f.router.Leave()
				time.AfterFunc(100*time.Millisecond, func() { close(left) })
			}()
			c.call.Header = http.Header{"X-Kvpilot-Resume": {"carry"}}
			to := &client{}
			err := f.router.Serve(t.Context(), c.call, to)
			if ended := apierror.From(err) != nil && apierror.From(err).Reason == apierror.ShuttingDown; ended != c.ends || !c.ends && err != nil {
				t.Errorf("Serve() = %v, and the client has\n%s", err, &to.body)
			}
			<-left
			f.settled()
		})
	}
}

// A stream that continues at another router costs its tenant a request, its prompt and its answer once.
func TestAStreamThatContinuesElsewhereIsChargedOnce(t *testing.T) {
	usage := `data: {"id":"one","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4}}` + "\n\n"
	for name, more := range map[string]string{"with usage": `,"stream_options":{"include_usage":true}}`, "without usage": "}"} {
		t.Run(name, func(t *testing.T) {
			limits := quota.Config{quota.Default: {RequestsPerSecond: .001, TokensPerMinute: 1000}} // one request
			first, second := newAccount(t, limits), newAccount(t, limits)
			a := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = first })
			b := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = second })
			a.script(streaming(hello(), func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			to := &client{}
			to.onWrite = func([]byte) error {
				if strings.Contains(to.body.String(), `lo"`) {
					a.router.Leave()
				}
				return nil
			}
			call := chat(asking + more)
			call.Header = http.Header{"X-Kvpilot-Resume": {"carry"}}
			if err := a.router.Serve(t.Context(), call, to); apierror.From(err).Reason != apierror.ShuttingDown {
				t.Fatalf("Serve() = %v", err)
			}
			if got, want := first.last(t), (quota.Usage{Charge: quota.ChargeUsage, Output: 2, Elsewhere: true}); got != want {
				t.Errorf("the first router charges %+v, want %+v", got, want)
			}
			var g quota.Grant
			if refusal := first.Limiter.Admit(&g, ""); refusal != nil {
				t.Errorf("the request still counts at the first router: %s", refusal.Message())
			}
			rest := world()[:2]
			if name == "with usage" {
				rest = append(rest, strings.Replace(usage, `"completion_tokens":4`, `"completion_tokens":2`, 1))
			}
			b.script(whole(append(rest, end)))
			received, _ := json.Marshal(to.body.String())
			call = chat(asking + strings.TrimSuffix(more, "}") + `,"kvpilot_received":` + string(received) + "}")
			if name == "with usage" {
				call = chat(asking + `,"stream_options":{"include_usage":true},"kvpilot_received":` + string(received) + "}")
			}
			call.Header = http.Header{"X-Kvpilot-Resume": {"continue"}}
			if err := b.router.Serve(t.Context(), call, &client{}); err != nil {
				t.Fatalf("Serve() = %v", err)
			}
			if got, want := second.last(t), (quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 2}); got != want {
				t.Errorf("the second router charges %+v, want %+v", got, want)
			}
			a.settled()
			b.settled()
		})
	}
}
