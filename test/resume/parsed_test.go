package resume

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// answer is what a client makes of a stream, without ids and times.
type answer struct {
	content, reasoning, finish, usage string
	probable                          []string // tokens with log probabilities, of each choice
	calls                             []string // name and arguments
	others                            []string // contents and finish reasons of all choices
	callIDs                           map[string]bool
	ids                               map[string]bool
	done                              bool
	failure                           string
	replica                           string // that the stream began on
	events                            int
}

// text is all of it that must be equal.
func (a *answer) text() string {
	return fmt.Sprintf("content %q, reasoning %q, calls %q, finish %s, usage %s, done %v, failure %q, %d ids of calls, %d of events, choices %q, tokens %q",
		a.content, a.reasoning, a.calls, a.finish, a.usage, a.done, a.failure, len(a.callIDs), len(a.ids), a.others, a.probable)
}

// cuts kills a replica after each number of events of a stream, and has the stream read until one began on that replica. It
// returns how many streams were resumed. The replica dies at the first request that has the text poison.
func cuts(t *testing.T, s *stack.Stack, events int, poison string, read func(at int) (replica string)) (resumes int) {
	t.Helper()
	urls, before := map[string]string{}, resumed(t, s)
	for at := 1; at < events; at++ {
		dies := s.Replicas[at%len(s.Replicas)] // a replica that has just died is left alone for a while
		faultAt(t, s.Replicas, `{}`)
		faultAt(t, []string{dies}, fmt.Sprintf(`{"poison":%q,"die_after":%d,"times":1}`, poison, at))
		for range 2 * len(s.Replicas) {
			began := read(at)
			if urls[began] == "" {
				urls[began] = urlOf(t, s, began)
			}
			if urls[began] != dies {
				continue
			}
			if n := resumed(t, s); n > before {
				before = n
				resumes++
			}
			break
		}
	}
	return resumes
}

// ask asks for a stream and reads it.
func ask(t *testing.T, url, body string) *answer {
	t.Helper()
	return watch(t, url, body, func(int, string) {})
}

// watch is ask with a look at each event: its number, and the replica that the stream began on.
func watch(t *testing.T, url, body string, seen func(events int, replica string)) *answer {
	t.Helper()
	return watchHead(t, url, body, func(events int, head http.Header) { seen(events, head.Get("X-Kvpilot-Replica")) })
}

// watchHead is watch with all headers of the answer.
func watchHead(t *testing.T, url, body string, seen func(events int, head http.Header)) *answer {
	t.Helper()
	a := &answer{callIDs: map[string]bool{}, ids: map[string]bool{}}
	var head http.Header
	readLines(t, url+"/v1/chat/completions", body, "", func(h http.Header) { head, a.replica = h, h.Get("X-Kvpilot-Replica") }, func(line string) {
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			a.done = true
		default:
			a.event(t, data)
			seen(a.events, head)
		}
	})
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
			Index    int      `json:"index"`
			Finish   string   `json:"finish_reason"`
			IDs      []uint32 `json:"token_ids"`
			Logprobs struct {
				Content []struct {
					Token string `json:"token"`
				} `json:"content"`
			} `json:"logprobs"`
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
		if c.Index == 0 {
			a.content, a.finish = a.content+c.Delta.Content, a.finish+c.Finish
		}
		a.reasoning += c.Delta.Reasoning
		for c.Index >= len(a.others) { // the choices come in any order
			a.others, a.probable = append(a.others, ""), append(a.probable, "")
		}
		a.others[c.Index] += c.Delta.Content + c.Finish
		for _, p := range c.Logprobs.Content {
			a.probable[c.Index] += p.Token
		}
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
	faultAt(t, s.Replicas, body)
}

func faultAt(t *testing.T, replicas []string, body string) {
	t.Helper()
	for _, url := range replicas {
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
		c.Upstream.Breaker.Failures, c.Upstream.Breaker.MinRequests = 0, 1_000_000
		c.Chooser.Policy = "round-robin"
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return s
}

// An answer with thoughts, tool calls or both is continued to the letter wherever its replica dies.
func TestAnAnswerWithThoughtsAndToolCallsIsContinued(t *testing.T) {
	t.Parallel()
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

// An answer in which nothing is drawn is repeated by another replica, wherever its own dies: the client has it once, to the letter.
func TestAnAnswerIsRepeatedByAnotherReplica(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for answers at the speed of an engine")
	}
	t.Parallel()
	for _, version := range []string{"0.12.0", "0.33.0"} {
		s := started(t, version, false)
		for name, more := range map[string]string{
			"a tool that must be called":  `"messages":[{"role":"user","content":"hello"}],"tool_choice":"required",` + weather,
			"a tool that is named":        `"messages":[{"role":"user","content":"hello"}],"tool_choice":{"type":"function","function":{"name":"get_weather"}},` + weather,
			"a tool that may be called":   `"messages":[{"role":"user","content":"think first, then use get_weather"}],` + weather,
			"a schema":                    `"messages":[{"role":"user","content":"hello"}],"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`,
			"a regular expression":        `"messages":[{"role":"user","content":"hello"}],"structured_outputs":{"regex":"[A-Z].*"}`,
			"penalties, several choices":  `"messages":[{"role":"user","content":"hello"}],"presence_penalty":0.5,"frequency_penalty":0.5,"n":3`,
			"log probabilities":           `"messages":[{"role":"user","content":"hello"}],"logprobs":true,"top_logprobs":2`,
			"stop strings and tools":      `"messages":[{"role":"user","content":"hello"}],"stop":["zzz"],` + weather,
			"a field of tomorrow, a seed": `"messages":[{"role":"user","content":"hello"}],"seed":7,"temperature":0.9,"a_field_of_tomorrow":true`,
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				body := `{"model":"sim","stream":true,"max_tokens":200,"stream_options":{"include_usage":true},` + more + `}`
				if !strings.Contains(more, "temperature") {
					body = strings.Replace(body, `{`, `{"temperature":0,`, 1)
				}
				fault(t, s, `{}`)
				want := ask(t, "http://"+s.HTTP, body)
				if !want.done || want.failure != "" || want.finish == "" {
					t.Fatalf("undisturbed: %s", want.text())
				}
				resumes := cuts(t, s, want.events, `"stream":true`, func(at int) string {
					got := ask(t, "http://"+s.HTTP, body)
					if got.text() != want.text() {
						t.Fatalf("cut after %d events, the client has\n%s\nwant\n%s", at, got.text(), want.text())
					}
					return got.replica
				})
				// A reset connection may take the events with it that the router has not read: then the answer is not resumed, but retried.
				if resumes == 0 {
					t.Errorf("no stream was resumed after %d cuts", want.events-1)
				}
			})
		}
	}
}

// resumed is how many streams the router has resumed.
func resumed(t *testing.T, s *stack.Stack) int {
	t.Helper()
	return results(t, s, "resumed")
}

// results is how many streams of the router ended early with a result.
func results(t *testing.T, s *stack.Stack, result string) int {
	t.Helper()
	return counted(t, s, "kvpilot_router_resumes_total", "result", result)
}

// counted sums up the series of a counter that have a label.
func counted(t *testing.T, s *stack.Stack, name, label, value string) int {
	t.Helper()
	resp, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	total := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		series, ok := strings.CutPrefix(lines.Text(), name+"{")
		labels, number, _ := strings.Cut(series, "} ")
		if !ok || !strings.Contains(labels, fmt.Sprintf("%s=%q", label, value)) {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		total += n
	}
	return total
}
