package resume

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/internal/compare"
)

// A stream that another replica continues has the members of the engine's own stream, in each event and at its end, wherever its replica dies. Into how many events the
// tokens are cut is the engine's affair.
func TestAContinuationHasTheMembersOfTheEngine(t *testing.T) {
	t.Parallel()
	s := started(t, "0.33.0", true)
	url := "http://" + s.HTTP
	type request struct{ path, body string }
	all := map[string]request{
		"completion":              {"/v1/completions", `"max_tokens":40,"stream_options":{"include_usage":true},"prompt":"Tell me"`},
		"completion, no usage":    {"/v1/completions", `"max_tokens":40,"prompt":"Tell me"`},
		"chat, no usage":          {"/v1/chat/completions", `"max_tokens":40,"messages":[{"role":"user","content":"Tell me"}]`},
		"a tool call, no usage":   {"/v1/chat/completions", `"max_tokens":60,"messages":[{"role":"user","content":"use get_weather"}],` + weather},
		"a forced call, no usage": {"/v1/chat/completions", `"max_tokens":60,"messages":[{"role":"user","content":"Hello"}],"tool_choice":"required",` + weather},
	}
	for i, kind := range kinds {
		all[fmt.Sprint("chat ", i)] = request{"/v1/chat/completions", `"max_tokens":60,"stream_options":{"include_usage":true},` + fmt.Sprintf(kind, i)}
	}
	total := 0
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","temperature":0,"stream":true,` + c.body + `}`
			fault(t, s, `{}`)
			want, _ := raw(t, url+c.path, body)
			if !compare.IsWhole(want) || strings.Count(want, "system_fingerprint") != 1 && !strings.Contains(body, `"n":2`) {
				t.Fatalf("undisturbed: %s", want)
			}
			resumes := cuts(t, s, compare.Events(want), `"stream":true`, func(at int) string {
				got, replica := raw(t, url+c.path, body)
				if compare.Content(got) != compare.Content(want) {
					t.Fatalf("cut after %d events, the client has\n%s\nwant\n%s", at, compare.Content(got), compare.Content(want))
				}
				g, gotTokens := members(got)
				w, wantTokens := members(want)
				if g != w || gotTokens != "" && wantTokens != "" && gotTokens != wantTokens {
					t.Fatalf("cut after %d events, the stream has\n%s%s\nwant\n%s%s", at, g, gotTokens, w, wantTokens)
				}
				return replica
			})
			total += resumes
		})
	}
	if total < len(all) { // of a short one a busy machine may leave none: all comes at once
		t.Errorf("%d streams of %d kinds were resumed", total, len(all))
	}
}

// said is the part of an event that depends on how many tokens come at once, and the choice.
var said = regexp.MustCompile(`"index":\d+,("delta":\{.*?\}|"text":"(?:[^"\\]|\\.)*"),"logprobs":.*?,"finish_reason"`)

// members are the members of a stream's events, each once: of those with tokens, and of all others.
func members(stream string) (others, tokens string) {
	seen := map[string]bool{}
	for event := range strings.SplitSeq(compare.Exact(stream), "\n\n") {
		if event = said.ReplaceAllString(event, `"finish_reason"`); seen[event] {
			continue
		}
		seen[event] = true
		if strings.Contains(event, `"finish_reason":null`) && strings.Contains(event, `"token_ids"`) {
			tokens += event + "\n"
		} else {
			others += event + "\n"
		}
	}
	return others, tokens
}

// raw is an answer as it comes, and the replica that it began on.
func raw(t *testing.T, url, body string) (stream, replica string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(all), resp.Header.Get("X-Kvpilot-Replica")
}
