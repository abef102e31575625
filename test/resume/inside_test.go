package resume

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/internal/compare"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// unstreamed are requests whose answers in one piece can be continued, by path.
var unstreamed = map[string][2]string{
	"chat":                    {"/v1/chat/completions", `"messages":[{"role":"user","content":"Größe \"quoted\" 你好"}],"max_tokens":90`},
	"chat with a stop string": {"/v1/chat/completions", `"messages":[{"role":"user","content":"Hello"}],"max_tokens":90,"stop":["zzz","high"]`},
	"completion":              {"/v1/completions", `"prompt":"Once upon a time","max_tokens":90`},
}

// parsedWhole are requests whose answers in one piece an engine's parser takes apart, in the same way as unstreamed.
var parsedWhole = map[string][2]string{
	"chat":                  {"/v1/chat/completions", `"messages":[{"role":"user","content":"Größe \"quoted\" 你好"}],"max_tokens":90`},
	"chat with a tool call": {"/v1/chat/completions", `"messages":[{"role":"user","content":"use get_weather"}],"max_tokens":90,` + weather},
	"chat with tools":       {"/v1/chat/completions", `"messages":[{"role":"user","content":"Hello"}],"max_tokens":90,"tool_choice":"auto",` + weather},
	"completion":            {"/v1/completions", `"prompt":"Once upon a time","max_tokens":90`},
}

// whole asks for an answer in one piece, under a request id.
func whole(t *testing.T, url, path, body, id string) (status int, header http.Header, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// untimed is an answer without what differs between two equal ones: ids, the time, and how much of the prompt a cache had.
func untimed(answer string) string {
	answer = regexp.MustCompile(`"id":"[^"]*"`).ReplaceAllString(answer, `"id":""`)
	answer = regexp.MustCompile(`"created":[0-9]+`).ReplaceAllString(answer, `"created":0`)
	return regexp.MustCompile(`"(cached|created_cache)_tokens":[0-9]+`).ReplaceAllString(answer, `"${1}_tokens":0`)
}

// insides are two routers before the same engines without parsers: one requests answers in one piece as streams, the other one does not.
func insides(t *testing.T, version string, change func(*enginesim.Config)) (streams, plain *stack.Stack) {
	t.Helper()
	settle := func(on bool) func(*config.Config) {
		return func(c *config.Config) {
			c.Upstream.Breaker.Failures, c.Upstream.Breaker.MinRequests = 0, 1_000_000
			c.Chooser.Policy, c.Router.ResumeUnstreamed = "round-robin", on
		}
	}
	streams = stack.Start(t, stack.Options{Replicas: 3, Engine: func(c *enginesim.Config) {
		c.Version, c.NoParser, c.MeanAnswer, c.Core.Timing.Speed = version, true, 600, 10
		if change != nil {
			change(c)
		}
	}, Configure: settle(true)})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return streams, stack.Start(t, stack.Options{Existing: streams.Replicas, Configure: settle(false)})
}

// An answer in one piece that the engine streams is the engine's own, byte for byte, and is continued wherever its replica dies.
func TestAnUnstreamedAnswerIsContinued(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	t.Parallel()
	for _, version := range []string{"0.33.0", "0.33.0 without details of the prompt"} {
		t.Run(version, func(t *testing.T) {
			version, more, _ := strings.Cut(version, " ")
			streams, plain := insides(t, version, func(c *enginesim.Config) { c.TokenDetails = more == "" })
			for name, ask := range unstreamed {
				t.Run(name, func(t *testing.T) {
					continuedWhole(t, streams, plain, ask[0], `{"model":"sim","temperature":0,`+ask[1]+`}`)
				})
			}
		})
	}
}

// An answer in one piece that an engine's parser takes apart is the engine's own, too: its parser is given all tokens of the stream at once.
func TestAnUnstreamedAnswerOfAParserIsContinued(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	t.Parallel()
	streams, plain := insides(t, "0.33.0", func(c *enginesim.Config) { c.NoParser = false })
	for name, ask := range parsedWhole {
		t.Run(name, func(t *testing.T) {
			continuedWhole(t, streams, plain, ask[0], `{"model":"sim","temperature":0,`+ask[1]+`}`)
		})
	}
}

func continuedWhole(t *testing.T, streams, plain *stack.Stack, path, body string) {
	t.Helper()
	fault(t, streams, `{}`)
	for i := range 2 * len(streams.Replicas) { // the first ones are the engines' own
		status, head, want := whole(t, "http://"+plain.HTTP, path, body, fmt.Sprint("same-", i))
		code, header, got := whole(t, "http://"+streams.HTTP, path, body, fmt.Sprint("same-", i))
		if code != status || header.Get("Content-Type") != head.Get("Content-Type") || header.Get("Content-Length") != fmt.Sprint(len(got)) || untimed(got) != untimed(want) {
			t.Fatalf("answer %d: %d %v\n%s\nwant %d %v\n%s", i, code, header, got, status, head, want)
		}
		if id := fmt.Sprint("-same-", i); !strings.Contains(got, id) {
			t.Errorf("the answer has not the id of its request, %s: %s", id, got)
		}
	}
	_, _, want := whole(t, "http://"+plain.HTTP, path, body, "x")
	stream, _ := raw(t, "http://"+plain.HTTP+path, strings.Replace(body, `{`, `{"stream":true,`, 1))
	events := min(50, compare.Events(stream)-2)
	const cuts = 5
	met := 0
	// Each replica fails in turn, since the router may prefer one. A cut may take the events with it that the router has not read: then the answer is retried.
	for i := 0; met < cuts && i < 4*cuts; i++ {
		at := 3 + i%cuts*(events-3)/cuts // behind the first token
		faultAt(t, streams.Replicas, `{}`)
		faultAt(t, streams.Replicas[i%len(streams.Replicas):][:1], fmt.Sprintf(`{"poison":"\"stream\":true","die_after":%d,"times":1}`, at))
		before := resumed(t, streams)
		for n := range 2 * len(streams.Replicas) {
			id := fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(t.Name(), "/", "."), i, n)
			if status, _, got := whole(t, "http://"+streams.HTTP, path, body, id); status != http.StatusOK || untimed(got) != untimed(want) {
				t.Fatalf("cut after %d events: %d\n%s\nwant\n%s", at, status, got, want)
			}
			if resumed(t, streams) > before {
				if times, most := asked(t, streams, path, id), 1+boolInt(path == "/v1/completions"); times > most {
					t.Fatalf("cut after %d events, the answer was requested %d times from its beginning", at, times-most+1)
				}
				met++
				break
			}
		}
	}
	if met < cuts {
		t.Errorf("%d of %d answers were continued", met, cuts)
	}
}

// asked is how often replicas got a request at a path.
func asked(t *testing.T, s *stack.Stack, path, id string) (times int) {
	t.Helper()
	for _, url := range s.Replicas {
		resp, err := http.Get(url + "/sim/requests")
		if err != nil {
			t.Fatal(err)
		}
		var list []enginesim.Record
		err = json.NewDecoder(resp.Body).Decode(&list)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if list[i].Path == path && strings.HasSuffix(list[i].RequestID, id) {
				times++
			}
		}
	}
	if times == 0 {
		t.Fatalf("no replica knows the request %s", id)
	}
	return times
}

// An answer in one piece is requested as it is where the engine's own cannot be made of a stream, and where it is short.
func TestAnUnstreamedAnswerThatIsSentAsItIs(t *testing.T) {
	t.Parallel()
	streams, _ := insides(t, "0.33.0", nil)
	for name, more := range map[string]string{
		"a short answer": `"messages":[{"role":"user","content":"hi"}],"max_tokens":20`,
		"tools":          `"messages":[{"role":"user","content":"use get_weather"}],"max_tokens":90,` + weather,
		"a forced call":  `"messages":[{"role":"user","content":"hi"}],"max_tokens":90,"tool_choice":"required",` + weather,
		"log probs":      `"messages":[{"role":"user","content":"hi"}],"max_tokens":90,"logprobs":true`,
		"two answers":    `"messages":[{"role":"user","content":"hi"}],"max_tokens":90,"n":2`,
		"a penalty":      `"messages":[{"role":"user","content":"hi"}],"max_tokens":90,"presence_penalty":0.4`,
	} {
		t.Run(name, func(t *testing.T) { sentAsItIs(t, streams, more) })
	}
	for path, more := range map[string]string{
		"/v1/messages":  `"messages":[{"role":"user","content":"hi"}],"max_tokens":90`,
		"/v1/responses": `"input":"hi","max_output_tokens":90`,
	} {
		t.Run(path, func(t *testing.T) { sentAsItIsTo(t, streams, path, more) })
	}
	for name, change := range map[string]func(*enginesim.Config){
		"an engine that hides its parsers":  func(c *enginesim.Config) { c.ScaleOut = false },
		"an older engine":                   func(c *enginesim.Config) { c.Version = "0.32.0" },
		"an engine with the Rust front end": func(c *enginesim.Config) { c.Rust = true },
	} {
		t.Run(name, func(t *testing.T) {
			streams, _ := insides(t, "0.33.0", change)
			sentAsItIs(t, streams, `"messages":[{"role":"user","content":"hi"}],"max_tokens":90`)
		})
	}
}

func sentAsItIs(t *testing.T, s *stack.Stack, more string) {
	t.Helper()
	sentAsItIsTo(t, s, "/v1/chat/completions", more)
}

func sentAsItIsTo(t *testing.T, s *stack.Stack, path, more string) {
	t.Helper()
	fault(t, s, `{"poison":"\"stream\":true","status":418,"times":1}`)
	for range 2 * len(s.Replicas) {
		if status, _, got := whole(t, "http://"+s.HTTP, path, `{"model":"sim",`+more+`}`, "y"); status != http.StatusOK {
			t.Fatalf("%d: %s", status, got)
		}
	}
	for _, url := range s.Replicas {
		resp, err := http.Get(url + "/sim/faults")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "418") {
			t.Error("an engine was asked for a stream")
		}
	}
}
