package gateway_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

func TestErrorsBeforeTheFirstByte(t *testing.T) {
	engine := []byte(`{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}`)
	for name, tc := range map[string]struct {
		err         error
		path        string
		status      int
		body        string
		contentType string
		header      [2]string
	}{
		"ours": {apierror.New(apierror.NoReplica, "none", errors.New("10.0.0.1"), apierror.WithRetryAfter(1500*time.Millisecond)), "/v1/chat/completions", 503,
			`{"error":{"message":"none","type":"server_error","param":null,"code":"no_replica"}}`, "application/json", [2]string{"Retry-After", "2"}},
		"the engine's": {apierror.Upstream(422, "application/json; x=1", engine), "/v1/chat/completions", 422, string(engine), "application/json; x=1", [2]string{"X-Kvpilot-Reason", "INVALID_BODY"}},
		"hidden":       {errors.New("dial 10.0.0.1"), "/v1/chat/completions", 500, `{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`, "application/json", [2]string{"X-Kvpilot-Reason", "INTERNAL"}},
		"anthropic":    {apierror.New(apierror.ModelNotFound, "no", nil), "/v1/messages", 404, `{"type":"error","error":{"type":"not_found_error","message":"no"}}`, "application/json", [2]string{"X-Kvpilot-Reason", "MODEL_NOT_FOUND"}},
		"a panic":      {nil, "/v1/chat/completions", 500, `{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`, "application/json", [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			url := start(t, &services{chat: func(*httpcall.Call, *httpbody.HttpBody, bodies) error {
				if tc.err == nil {
					panic("bug")
				}
				return tc.err
			}})
			resp, got := call(t, "POST", url+tc.path, "{}")
			if resp.StatusCode != tc.status || got != tc.body || resp.Header.Get("Content-Type") != tc.contentType {
				t.Errorf("answer %d %q %s", resp.StatusCode, resp.Header.Get("Content-Type"), got)
			}
			if resp.ContentLength != int64(len(got)) {
				t.Errorf("Content-Length %d of %d", resp.ContentLength, len(got))
			}
			if tc.header[0] != "" && resp.Header.Get(tc.header[0]) != tc.header[1] {
				t.Errorf("%s: %q", tc.header[0], resp.Header.Get(tc.header[0]))
			}
		})
	}
}

func TestErrorsAfterTheFirstByte(t *testing.T) {
	broken := apierror.New(apierror.UpstreamStreamBroken, "ended early", nil)
	answer := func(header http.Header) chatHandler {
		return func(e *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
			if err := e.Answer.Begin(200, header); err != nil {
				return err
			}
			if err := out.Send(&httpbody.HttpBody{Data: []byte("data: 1\n\n")}); err != nil {
				return err
			}
			return broken
		}
	}
	events := start(t, &services{chat: answer(http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}})})
	resp, got := call(t, "POST", events+"/v1/chat/completions", "{}")
	want := "data: 1\n\n" + `data: {"error":{"message":"ended early","type":"server_error","param":null,"code":"upstream_stream_broken"}}` + "\n\ndata: [DONE]\n\n"
	if resp.StatusCode != 200 || got != want {
		t.Errorf("OpenAI stream:\n%q\nwant\n%q", got, want)
	}
	for path, want := range map[string]string{
		"/v1/responses":         "data: 1\n\nevent: error\n" + `data: {"type":"error","code":"upstream_stream_broken","message":"ended early","param":null,"error":{"message":"ended early","type":"server_error","param":null,"code":"upstream_stream_broken"}}` + "\n\n",
		"/v1/chat/completions/": want, // as without its last slash
	} {
		if _, got = call(t, "POST", events+path, "{}"); got != want {
			t.Errorf("%s:\n%q\nwant\n%q", path, got, want)
		}
	}
	_, got = call(t, "POST", events+"/v1/messages", "{}")
	if want := "data: 1\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"ended early\"}}\n\n"; got != want {
		t.Errorf("Anthropic stream:\n%q\nwant\n%q", got, want)
	}
	// An answer that is no stream must not look whole.
	for name, header := range map[string]http.Header{"known length": {"Content-Length": {"100"}}, "chunked": {"Content-Type": {"application/json"}}} {
		url := start(t, &services{chat: answer(header)})
		resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: a broken answer looks whole", name)
		}
	}
}

// An answer may end early anywhere. What it was cut off in must not swallow the error.
func TestAnErrorStandsForItselfAfterACut(t *testing.T) {
	const failure = `data: {"error":{"message":"ended early","type":"server_error","param":null,"code":"upstream_stream_broken"}}` + "\n\ndata: [DONE]\n\n"
	for cut, want := range map[string]string{
		"data: 1\n\n":          "",
		"data: 1\n":            "\n",
		"data: 1":              "\n\n",
		"d":                    "\n\n",
		"data: 1\r\n\r\n":      "\n",
		"data: 1\r\r":          "\n",
		"data: 1\n\n: comment": "\n\n",
	} {
		for _, size := range []int{1, 2, 3, 100} {
			url := start(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, out bodies) error {
				if err := e.Answer.Begin(200, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
					return err
				}
				for piece := range slices.Chunk([]byte(cut), size) {
					if err := out.Send(&httpbody.HttpBody{Data: piece}); err != nil {
						return err
					}
				}
				return apierror.New(apierror.UpstreamStreamBroken, "ended early", nil)
			}})
			if _, got := call(t, "POST", url+"/v1/chat/completions", "{}"); got != cut+want+failure {
				t.Errorf("after %q in pieces of %d: %q", cut, size, got)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	url := start(t, &services{chat: echo}, func(c *gateway.Config, _ *gateway.Params) { c.MaxBodyBytes = 1000 })
	big := strings.Repeat("x", 1001)
	for name, tc := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		code               string
		answer             [2]string
	}{
		"unknown path":           {"POST", "/v1/nothing", "{}", nil, 404, "route_not_found", [2]string{}},
		"unknown path, GET":      {"GET", "/nothing", "", nil, 404, "route_not_found", [2]string{}},
		"wrong method":           {"GET", "/v1/chat/completions", "", nil, 405, "method_not_allowed", [2]string{"Allow", "POST"}},
		"wrong method on GET":    {"PUT", "/v1/models", "{}", nil, 405, "method_not_allowed", [2]string{"Allow", "GET, HEAD"}},
		"wrong method, variable": {"POST", "/v1/models/a/b", "{}", nil, 405, "method_not_allowed", [2]string{"Allow", "GET, HEAD"}},
		"wrong method, replica":  {"PUT", "/kvpilot/v1/replicas/r", "{}", nil, 405, "method_not_allowed", [2]string{"Allow", "DELETE, GET, HEAD"}},
		"slash, wrong method":    {"GET", "/v1/chat/completions/", "", nil, 405, "method_not_allowed", [2]string{"Allow", "POST"}},
		"two slashes":            {"POST", "/v1/chat/completions//", "", nil, 404, "route_not_found", [2]string{}},
		"invented method":        {"BREW", "/v1/chat/completions", "", nil, 405, "method_not_allowed", [2]string{}},
		"no override":            {"POST", "/v1/models", "{}", []string{"X-Http-Method-Override", "GET", "Content-Type", "application/x-www-form-urlencoded"}, 405, "method_not_allowed", [2]string{}},
		"too large":              {"POST", "/v1/chat/completions", big, nil, 413, "body_too_large", [2]string{}},
		"compressed":             {"POST", "/v1/chat/completions", "x", []string{"Content-Encoding", "gzip"}, 415, "unsupported_media_type", [2]string{}},
		"a form for JSON":        {"POST", "/kvpilot/v1/choose", "a=b", []string{"Content-Type", "text/plain"}, 415, "unsupported_media_type", [2]string{}},
		"broken JSON":            {"POST", "/kvpilot/v1/choose", `{"model":`, []string{"Content-Type", "application/json"}, 400, "invalid_body", [2]string{}},
		"wrong type":             {"POST", "/kvpilot/v1/choose", `{"model":7}`, nil, 400, "invalid_body", [2]string{}},
		"a bad query":            {"GET", "/kvpilot/v1/decisions?page_size=x", "", nil, 400, "invalid_body", [2]string{}},
		"not implemented here":   {"GET", "/kvpilot/v1/policies", "", nil, 500, "internal", [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, got := call(t, tc.method, url+tc.path, tc.body, tc.header...)
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			if err := json.Unmarshal([]byte(got), &e); err != nil {
				t.Fatalf("no OpenAI error: %d %q", resp.StatusCode, got)
			}
			if resp.StatusCode != tc.status || e.Error.Code != tc.code || e.Error.Message == "" {
				t.Errorf("%d %+v", resp.StatusCode, e)
			}
			if tc.answer[0] != "" && resp.Header.Get(tc.answer[0]) != tc.answer[1] {
				t.Errorf("%s: %q", tc.answer[0], resp.Header.Get(tc.answer[0]))
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
		})
	}
	t.Run("too large, chunked", func(t *testing.T) {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", io.MultiReader(strings.NewReader(big)))
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
}

func TestAWrongDurationIsToldHowOneIsWritten(t *testing.T) {
	url := start(t, &services{})
	if _, got := call(t, "POST", url+"/kvpilot/v1/choose", `{"lease":"1h"}`); !strings.Contains(got, `must be a duration in seconds, as in \"90s\", not \"1h\"`) {
		t.Errorf("got %s", got)
	}
}
