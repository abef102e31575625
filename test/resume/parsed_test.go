package resume

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// answer is what a client makes of a stream, without ids and times.
type answer struct {
	content, reasoning, finish, usage string
	calls                             []string // name and arguments
	callIDs                           map[string]bool
	ids                               map[string]bool
	done                              bool
	failure                           string
	events                            int
}

// text is all of it that must be equal.
func (a *answer) text() string {
	return fmt.Sprintf("content %q, reasoning %q, calls %q, finish %s, usage %s, done %v, failure %q, %d ids of calls, %d of events",
		a.content, a.reasoning, a.calls, a.finish, a.usage, a.done, a.failure, len(a.callIDs), len(a.ids))
}

// ask asks for a stream and reads it.
func ask(t *testing.T, url, body string) *answer {
	t.Helper()
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := &answer{callIDs: map[string]bool{}, ids: map[string]bool{}}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			a.done = true
		default:
			a.event(t, data)
		}
	}
	return a
}

func (a *answer) event(t *testing.T, data string) {
	t.Helper()
	var v struct {
		ID      string `json:"id"`
		Choices []struct {
			Delta struct {
				Content   string `json:"content"`
				Reasoning string `json:"reasoning"`
				Calls     []struct {
					ID       string `json:"id"`
					Index    int    `json:"index"`
					Function struct {
						Name      string `json:"name"`
						Arguments string `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"delta"`
			Finish string   `json:"finish_reason"`
			IDs    []uint32 `json:"token_ids"`
		} `json:"choices"`
		Prompt []uint32 `json:"prompt_token_ids"`
		Usage  *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		} `json:"usage"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	a.events++
	if v.Error != nil {
		a.failure = string(v.Error)
		return
	}
	a.ids[v.ID] = true
	if v.Prompt != nil {
		t.Errorf("the client did not ask for the prompt's ids: %s", data)
	}
	if v.Usage != nil {
		a.usage = fmt.Sprint(*v.Usage)
	}
	for _, c := range v.Choices {
		a.content, a.reasoning, a.finish = a.content+c.Delta.Content, a.reasoning+c.Delta.Reasoning, a.finish+c.Finish
		if c.IDs != nil {
			t.Errorf("the client did not ask for ids: %s", data)
		}
		for _, call := range c.Delta.Calls {
			for len(a.calls) <= call.Index {
				a.calls = append(a.calls, "")
			}
			if call.ID != "" {
				a.callIDs[call.ID] = true
			}
			a.calls[call.Index] += call.Function.Name + call.Function.Arguments
		}
	}
}

// fault has all replicas die after so many events of a stream that they are asked for with ids, once each at most.
func fault(t *testing.T, s *stack.Stack, body string) {
	t.Helper()
	for _, url := range s.Replicas {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/sim/faults", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode >= 300 {
			t.Fatalf("faults: %s", resp.Status)
		}
	}
}

const weather = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}]`

// started is a router before simulated replicas of a version.
func started(t *testing.T, version string, scaleOut bool) *stack.Stack {
	t.Helper()
	s := stack.Start(t, stack.Options{Replicas: 3, Engine: func(c *enginesim.Config) {
		c.Version, c.ScaleOut, c.MeanAnswer = version, scaleOut, 12
	}, Configure: func(c *config.Config) {
		c.Upstream.Breaker.Failures = 0
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return s
}

// An answer with thoughts, tool calls or both is continued to the letter wherever its replica dies.
func TestAnAnswerWithThoughtsAndToolCallsIsContinued(t *testing.T) {
	s := started(t, "0.33.0", true)
	for name, more := range map[string]string{
		"a tool call":                  `"messages":[{"role":"user","content":"use get_weather"}],` + weather,
		"tools and no call":            `"messages":[{"role":"user","content":"hello there"}],` + weather,
		"a thought":                    `"messages":[{"role":"user","content":"think first"}]`,
		"a thought and a tool call":    `"messages":[{"role":"user","content":"think first, then use get_weather"}],"tool_choice":"auto",` + weather,
		"a thought, temperature, seed": `"messages":[{"role":"user","content":"think first"}],"temperature":0.7,"seed":5`,
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"sim","stream":true,"max_tokens":200,"stream_options":{"include_usage":true},` + more + `}`
			if !strings.Contains(more, "temperature") {
				body = strings.Replace(body, `{`, `{"temperature":0,`, 1)
			}
			fault(t, s, `{}`)
			want := ask(t, "http://"+s.HTTP, body)
			if !want.done || want.failure != "" || want.finish == "" {
				t.Fatalf("undisturbed: %s", want.text())
			}
			for at := 1; at <= want.events+2; at++ {
				fault(t, s, fmt.Sprintf(`{"poison":"\"return_token_ids\":true","die_after":%d}`, at))
				if got := ask(t, "http://"+s.HTTP, body); got.text() != want.text() {
					t.Fatalf("cut after %d events, the client has\n%s\nwant\n%s", at, got.text(), want.text())
				}
			}
		})
	}
}
