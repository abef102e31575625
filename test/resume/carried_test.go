package resume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// carriedIDs are the ids that a client gets which carries its stream.
var carriedIDs = regexp.MustCompile(`"(prompt_token_ids|token_ids)":\[[0-9,]*\]`)

// post sends a request whose client carries its stream, and returns the answer's whole events, at most so many of them.
func post(t *testing.T, url, path, how, body string, most int) (status int, events string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Kvpilot-Resume", how)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var all []byte
	buf := make([]byte, 4096)
	for bytes.Count(all, []byte("\n\n")) < most {
		n, err := resp.Body.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			if err != io.EOF {
				t.Fatal(err)
			}
			break
		}
	}
	list := strings.SplitAfter(string(all), "\n\n")
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, string(all)
	}
	return resp.StatusCode, strings.Join(list[:min(most, len(list))], "")
}

// carried is the request for the rest of a stream.
func carried(body, received string) string {
	raw, _ := json.Marshal(received)
	return strings.TrimSuffix(body, "}") + `,"kvpilot_received":` + string(raw) + "}"
}

// made is what a client makes of a stream that it has carried.
func made(t *testing.T, path, stream string) string {
	t.Helper()
	a, n := &answer{callIDs: map[string]bool{}, ids: map[string]bool{}}, &named{ids: map[string]int{}}
	for line := range strings.Lines(carriedIDs.ReplaceAllString(stream, `"$1":null`)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			a.done = true
		case path == "/v1/chat/completions":
			a.event(t, data)
		default:
			n.event(t, data)
		}
	}
	if path == "/v1/chat/completions" {
		return a.text()
	}
	return n.text()
}

// A client that has carried its stream continues it at another router, wherever it broke, and has one answer. It may do so several times.
func TestAClientContinuesItsStreamElsewhere(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer = "0.33.0", true, 12
	}, Configure: func(c *config.Config) { c.Chooser.Policy = "round-robin" }})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	url := "http://" + s.HTTP
	type request struct{ path, body string }
	all := map[string]request{}
	for i, kind := range kinds {
		all[fmt.Sprint("chat ", i)] = request{"/v1/chat/completions", `"max_tokens":60,"stream_options":{"include_usage":true},` + fmt.Sprintf(kind, i)}
	}
	for name, kind := range namedKinds {
		all[name] = request{kind.path, fmt.Sprintf(kind.body, 3)}
	}
	all["sampled"] = request{"/v1/chat/completions", `"temperature":0.8,"max_tokens":30,"messages":[{"role":"user","content":"Tell me"}]`}
	all["sampled, a thought and a call"] = request{"/v1/chat/completions", `"temperature":0.8,"max_tokens":90,"messages":[{"role":"user","content":"think first, then use get_weather"}],` + weather}
	for name, kind := range sampled {
		if name == "a stop sequence" { // the text that is held back is not known elsewhere
			continue
		}
		if kind = fmt.Sprintf(kind, 1); !strings.Contains(kind, "temperature") {
			kind += `,"temperature":1`
		}
		all["a sampled message: "+name] = request{"/v1/messages", kind}
	}
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","stream":true,` + c.body + `}`
			if !strings.Contains(body, "temperature") {
				body = strings.Replace(body, `{`, `{"temperature":0,`, 1)
			}
			const most = 1 << 20
			_, whole := post(t, url, c.path, "carry", body, most)
			want := made(t, c.path, whole)
			events := strings.Count(whole, "\n\n")
			for at := range events - 1 {
				_, received := post(t, url, c.path, "carry", body, at)
				status, more := post(t, url, c.path, "continue", carried(body, received), 2)
				if status != http.StatusOK {
					t.Fatalf("cut after %d events: %d %s", at, status, more)
				}
				received += more
				// Once more; where nothing is missing, nothing comes.
				if status, more = post(t, url, c.path, "continue", carried(body, received), most); status != http.StatusOK {
					t.Fatalf("cut after %d and again: %d %s\n%s", at, status, more, received)
				}
				received += more
				if got := made(t, c.path, received); got != want {
					t.Fatalf("cut after %d events, the client has\n%s\nwant\n%s\n%s", at, got, want, received)
				}
			}
		})
	}
	if n := results(t, s, "taken_over"); n == 0 {
		t.Error("no stream is counted as taken over")
	}
}

// What cannot be continued is refused, and nothing of it reaches an engine.
func TestAStreamThatCannotBeContinuedElsewhere(t *testing.T) {
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) { c.Version = "0.33.0" }})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	url := "http://" + s.HTTP
	const chat = `{"model":"sim","stream":true,"messages":[{"role":"user","content":"Tell me"}],"temperature":0.7,"min_tokens":60,"max_tokens":80`
	_, received := post(t, url, "/v1/chat/completions", "carry", chat+"}", 4)
	plain := carriedIDs.ReplaceAllString(received, `"$1":null`)
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"no events":            {chat + "}", 400},
		"events of no string":  {chat + `,"kvpilot_received":7}`, 400},
		"no stream":            {carried(strings.Replace(chat, "true", "false", 1)+"}", received), 400},
		"events without ids":   {carried(chat+"}", plain), 409},
		"another prompt":       {carried(strings.Replace(chat, "Tell me", "Tell them", 1)+"}", received), 409},
		"an error":             {carried(chat+"}", received+"data: {\"error\":{\"code\":500}}\n\n"), 409},
		"the whole of it":      {carried(chat+"}", received+"data: [DONE]\n\n"), 200},
		"what is no event":     {carried(chat+"}", "\r\n\r\nhello"), 409},
		"what no other writes": {carried(strings.Replace(chat, `"max_tokens"`, `"use_beam_search":true,"max_tokens"`, 1)+"}", received), 409},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := post(t, url, "/v1/chat/completions", "continue", c.body, 1<<20)
			if status != c.status {
				t.Errorf("%d %s, want %d", status, answer, c.status)
			}
		})
	}
}

// A sampled message is continued only from the chunks that its events were made of.
func TestAMessageThatCannotBeContinuedElsewhere(t *testing.T) {
	s := stack.Start(t, stack.Options{Replicas: 2, Engine: func(c *enginesim.Config) { c.Version, c.ScaleOut, c.MeanAnswer = "0.33.0", true, 3000 }}) // nine events are never all of it
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	url := "http://" + s.HTTP
	const body = `{"model":"sim","stream":true,"temperature":0.7,"max_tokens":400,"messages":[{"role":"user","content":"Tell me about rivers"}]}`
	_, received := post(t, url, "/v1/messages", "carry", body, 9)
	chunks := regexp.MustCompile(`: ids .*\n\n`)
	if n := len(chunks.FindAllString(received, -1)); n < 3 {
		t.Fatalf("%d chunks in %s", n, received)
	}
	for name, has := range map[string]string{
		"without the chunks":  chunks.ReplaceAllString(received, ""),
		"with another text":   strings.Replace(received, `"type":"text_delta","text":"`, `"type":"text_delta","text":"Un`, 1),
		"with an event more":  received + "event: ping\ndata: {\"type\":\"ping\"}\n\n",
		"with another prompt": strings.Replace(received, `"prompt_token_ids":[`, `"prompt_token_ids":[7,`, 1),
		"with an error":       received + ": ids {\"error\":{\"code\":500}}\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			if status, answer := post(t, url, "/v1/messages", "continue", carried(body, has), 1<<20); status != http.StatusConflict {
				t.Errorf("%d %s", status, answer)
			}
		})
	}
	if status, answer := post(t, url, "/v1/messages", "continue", carried(body, received), 1<<20); status != http.StatusOK || !strings.Contains(answer, "message_stop") {
		t.Errorf("as it came: %d %s", status, answer)
	}
}
