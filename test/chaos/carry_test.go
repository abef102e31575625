//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/kvpilot/kvpilot/client"
	"github.com/kvpilot/kvpilot/test/programs"
)

// carriedKinds are requests of the clients of this test, by path.
var carriedKinds = []struct{ path, body string }{
	{"/v1/chat/completions", `"temperature":0,"max_tokens":120,"messages":[{"role":"user","content":"Tell me about %d"}]`},
	{"/v1/chat/completions", `"temperature":0,"max_tokens":200,"messages":[{"role":"user","content":"About %d: think first, then use get_weather"}],"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`},
	{"/v1/chat/completions", `"temperature":0,"max_tokens":120,"presence_penalty":0.5,"messages":[{"role":"user","content":"Tell me about %d"}]`},
	{"/v1/messages", `"temperature":0,"max_tokens":120,"messages":[{"role":"user","content":"About %d: think first"}]`},
	{"/v1/messages", `"temperature":0.7,"max_tokens":120,"messages":[{"role":"user","content":"Tell me about %d"}]`},
	{"/v1/responses", `"temperature":0,"max_output_tokens":120,"input":"Tell me about %d"`},
}

// Clients of the Go package lose no stream when one of three routers is killed, or stops.
func TestClientsContinueAtAnotherRouter(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) { routerEnds(t, signal) })
	}
}

func routerEnds(t *testing.T, signal syscall.Signal) {
	var replicas []*process
	for range 2 {
		replicas = append(replicas, simulate(t, "0", "--version", "0.33.0", "--mean-answer", "80"))
	}
	var routers []*process
	var addresses, admins []string
	for range 3 {
		at, admin := programs.FreeAddress(t), programs.FreeAddress(t)
		routers = append(routers, serve(t, replicas, "--grpc", at, "--admin", admin))
		addresses, admins = append(addresses, at), append(admins, admin)
	}
	var clients []*client.Client
	for i := range addresses { // each prefers another router
		from := manual.NewBuilderWithScheme("routers")
		var list []resolver.Address
		for j := range addresses {
			list = append(list, resolver.Address{Addr: addresses[(i+j)%len(addresses)]})
		}
		from.InitialState(resolver.State{Addresses: list})
		c, err := client.Dial("routers:///all", client.WithGRPC(grpc.WithResolvers(from)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	const bodies = 30
	body := func(i int) (path, body string) {
		k := carriedKinds[i%len(carriedKinds)]
		return k.path, `{"model":"sim","stream":true,` + fmt.Sprintf(k.body, i%bodies) + `}`
	}
	var want [bodies]string
	for i := range bodies {
		path, b := body(i)
		said, err := read(t.Context(), clients[0], path, b, nil)
		if err != nil || said == "" {
			t.Fatalf("undisturbed: %q, %v", said, err)
		}
		want[i] = said
	}
	const streams = 90
	var all sync.WaitGroup
	var begun, lost, different atomic.Int64
	var slowest atomic.Int64
	for i := range streams {
		all.Go(func() {
			path, b := body(i)
			last := time.Now()
			got, err := read(t.Context(), clients[i%len(clients)], path, b, func(first bool) {
				if first {
					begun.Add(1)
				} else if gap := int64(time.Since(last)); gap > slowest.Load() {
					slowest.Store(gap)
				}
				last = time.Now()
			})
			switch {
			case err != nil:
				lost.Add(1)
				t.Errorf("stream %d: %v", i, err)
			case got != want[i%bodies]:
				different.Add(1)
				t.Errorf("stream %d has %q, want %q", i, got, want[i%bodies])
			}
		})
	}
	routers[0].until(20*time.Second, func() bool { return begun.Load() > streams*2/3 })
	ended := time.Now()
	routers[0].Signal(signal)
	all.Wait()
	t.Logf("%d streams at three routers, one %s: %d lost, %d different; the longest gap %s, all over %s after it",
		streams, signal, lost.Load(), different.Load(), time.Duration(slowest.Load()).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
	taken := 0
	for _, at := range admins[1:] {
		taken += takenOver(t, at)
	}
	if taken == 0 {
		t.Error("no stream was continued at another router: the test shows nothing")
	}
}

// takenOver is how many streams of other routers a router has continued.
func takenOver(t *testing.T, admin string) int {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), `kvpilot_router_resumes_total{result="taken_over"} `)
	number, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// read reads a stream and returns what it says, without ids and times.
func read(ctx context.Context, c *client.Client, path, body string, seen func(first bool)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := c.Open(ctx, path, []byte(body))
	if err != nil {
		return "", err
	}
	defer s.Close()
	said, first := "", true
	for {
		e, err := s.Event()
		if errors.Is(err, io.EOF) {
			return said, nil
		}
		if err != nil {
			return said, err
		}
		if strings.Contains(string(e), `"token_ids":[`) {
			return said, fmt.Errorf("an event has ids: %s", e)
		}
		if seen != nil {
			seen(first)
			first = false
		}
		var v struct {
			Type    string          `json:"type"`
			Delta   json.RawMessage `json:"delta"`
			Error   json.RawMessage `json:"error"`
			Choices []struct {
				Delta  delta  `json:"delta"`
				Finish string `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal(e, &v); err != nil || v.Error != nil {
			return said, fmt.Errorf("%s: %w", e, err)
		}
		for _, choice := range v.Choices {
			said += choice.Delta.text() + choice.Finish
		}
		var text string
		var d delta
		switch {
		case json.Unmarshal(v.Delta, &text) == nil:
			said += text
		case v.Type == "content_block_delta" && json.Unmarshal(v.Delta, &d) == nil:
			said += d.text()
		case v.Type != "" && !strings.HasSuffix(v.Type, "in_progress"):
			said += "<" + v.Type + ">"
		}
	}
}

// delta is what an event adds.
type delta struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning"`
	Text      string `json:"text"`
	Thinking  string `json:"thinking"`
	JSON      string `json:"partial_json"`
	Calls     []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func (d *delta) text() string {
	said := d.Content + d.Reasoning + d.Text + d.Thinking + d.JSON
	for _, c := range d.Calls {
		said += c.Function.Name + c.Function.Arguments
	}
	return said
}
