//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/internal/compare"
	"github.com/kvpilot/kvpilot/test/programs"
)

// weather is the tool of chats, messages and responses.
const (
	city           = `"type":"object","properties":{"city":{"type":"string"}}`
	weather        = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{` + city + `}}}]`
	messageWeather = `"tools":[{"name":"get_weather","input_schema":{` + city + `}}]`
	responseTool   = `"tools":[{"type":"function","name":"get_weather","parameters":{` + city + `}}]`
)

// kind is a kind of requests: the members of its body but for model, temperature and stream, with a place for a number.
type kind struct{ name, path, body string }

// everyKind are the kinds of answers that another replica continues, and, not streamed, those that it continues or gives again.
func everyKind() []kind {
	const (
		chats, completions, messages, responses = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"

		streamed = `"stream":true,"stream_options":{"include_usage":true},"max_tokens":80,`
		said     = streamed + `"messages":[{"role":"user","content":"Tell me about %d"}]`
		named    = `"stream":true,"max_tokens":80,`
		answered = `"stream":true,"max_output_tokens":80,`
	)
	return []kind{
		{"chat", chats, said},
		{"chat with stop strings", chats, said + `,"stop":["zzz"]`},
		{"chat with a tool call", chats, streamed + `"messages":[{"role":"user","content":"About %d: use get_weather"}],` + weather},
		{"chat with a thought", chats, streamed + `"messages":[{"role":"user","content":"About %d: think first"}]`},
		{"chat with a thought and a call", chats, streamed + `"messages":[{"role":"user","content":"About %d: think first, then use get_weather"}],` + weather},
		{"chat that must call", chats, said + `,"tool_choice":"required",` + weather},
		{"chat that must call one tool", chats, said + `,"tool_choice":{"type":"function","function":{"name":"get_weather"}},` + weather},
		{"chat with a schema", chats, said + `,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`},
		{"chat with a regular expression", chats, said + `,"structured_outputs":{"regex":"[A-Z].*"}`},
		{"chat with a penalty", chats, said + `,"presence_penalty":0.5`},
		{"chat with log probabilities", chats, said + `,"logprobs":true,"top_logprobs":2`},
		{"chat with two choices", chats, said + `,"n":2,"logprobs":true`},
		{"completion", completions, streamed + `"prompt":"Tell me about %d"`},
		{"completion with log probabilities", completions, streamed + `"prompt":"Tell me about %d","logprobs":2`},
		{"message", messages, named + `"messages":[{"role":"user","content":"Tell me about %d"}]`},
		{"message with a thought and a call", messages, named + `"messages":[{"role":"user","content":"About %d: think first, then use get_weather"}],` + messageWeather},
		{"message that must call", messages, named + `"messages":[{"role":"user","content":"About %d"}],"tool_choice":{"type":"any"},` + messageWeather},
		{"response", responses, answered + `"input":"Tell me about %d"`},
		{"response with a thought and a call", responses, answered + `"input":"About %d: think first, then use get_weather",` + responseTool},
		{"chat in one piece", chats, `"max_tokens":80,"messages":[{"role":"user","content":"Tell me about %d"}]`},
		{"completion in one piece", completions, `"max_tokens":80,"prompt":"Tell me about %d"`},
	}
}

func (k *kind) streamed() bool { return strings.Contains(k.body, `"stream":true`) }

// request is the nth request of the kind.
func (k *kind) request(n int) string {
	return `{"model":"sim","temperature":0,` + fmt.Sprintf(k.body, n) + `}`
}

// open sends a request.
func (p *process) open(ctx context.Context, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// whole reads an answer, and calls seen, which may be nil, with the number of its events that are there. Its error says why a client has
// not got the whole answer.
func (p *process) whole(path, body string, seen func(events int, replica string)) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	resp, err := p.open(ctx, path, body)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var all strings.Builder
	events, buf := 0, make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		all.Write(buf[:n])
		if now := compare.Events(all.String()); seen != nil && now > events {
			events = now
			seen(events, resp.Header.Get("X-Kvpilot-Replica"))
		}
		switch {
		case err == io.EOF && resp.StatusCode != http.StatusOK:
			return all.String(), fmt.Errorf("status %d: %s", resp.StatusCode, all.String())
		case err == io.EOF && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") && !compare.IsWhole(all.String()):
			return all.String(), fmt.Errorf("the stream ends with %q", last(all.String(), 300))
		case err == io.EOF:
			return all.String(), nil
		case err != nil:
			return all.String(), err
		}
	}
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }

// mortals are simulated replicas that can be killed and started again at the same address, and the router before them.
type mortals struct {
	t        *testing.T
	more     []string
	ports    []string
	replicas []*process
	router   *member
}

func startMortals(t *testing.T, n int, more []string, settings ...string) *mortals {
	t.Helper()
	m := &mortals{t: t, more: append([]string{"--version", "0.33.0", "--mean-answer", "30"}, more...)}
	for range n {
		at, err := url.Parse("http://" + ownPort(t))
		if err != nil {
			t.Fatal(err)
		}
		m.ports = append(m.ports, at.Port())
		m.replicas = append(m.replicas, simulate(t, at.Port(), m.more...))
	}
	admin := ownPort(t)
	m.router = &member{admin: admin, process: serve(t, m.replicas, append([]string{
		"--admin", admin, "--set", "telemetry.log_level=error", "--set", "chooser.policy=round-robin", "--set", "router.resume_unstreamed=true",
	}, settings...)...)}
	return m
}

// kill ends a replica with SIGKILL, and returns when it has ended.
func (m *mortals) kill(i int) {
	m.replicas[i].Signal(syscall.SIGKILL)
	<-m.replicas[i].Gone()
}

// revive starts a replica again that was killed.
func (m *mortals) revive(i int) { m.replicas[i] = simulate(m.t, m.ports[i], m.more...) }

// indexOf is the replica that the router calls id.
func (m *mortals) indexOf(ids []string, id string) int {
	for i, one := range ids {
		if one == id {
			return i
		}
	}
	return -1
}

// ids are the router's names of the replicas.
func (m *mortals) ids() (list []string) {
	for _, r := range m.replicas {
		list = append(list, m.router.idOf(r.url))
	}
	return list
}

// number is a number from the environment.
func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: must be a number above 0", name, text)
	}
	return n
}

// atOnce is how many answers are under way at a time.
const atOnce = 100

// traffic is clients that ask for answers of all kinds, one after the other, and compare each with the undisturbed one.
type traffic struct {
	m     *mortals
	kinds []kind
	want  []string
	all   sync.WaitGroup

	next, lost, different atomic.Int64
}

// newTraffic asks for one answer to each request.
func newTraffic(m *mortals) *traffic {
	m.t.Helper()
	transport := http.DefaultTransport.(*http.Transport)
	idle := transport.MaxIdleConnsPerHost
	transport.MaxIdleConnsPerHost = atOnce
	m.t.Cleanup(func() { transport.MaxIdleConnsPerHost = idle; http.DefaultClient.CloseIdleConnections() })
	c := &traffic{m: m, kinds: everyKind()}
	c.want = make([]string, 3*len(c.kinds))
	for i := range c.want {
		c.all.Go(func() {
			k, body := c.request(i)
			answer, err := m.router.whole(k.path, body, nil)
			if err != nil {
				m.t.Errorf("%s, undisturbed: %v", k.name, err)
			}
			c.want[i] = compare.Content(answer)
		})
	}
	c.all.Wait()
	if m.t.Failed() {
		m.t.FailNow()
	}
	return c
}

// request is the nth one.
func (c *traffic) request(n int) (*kind, string) {
	n %= len(c.want)
	k := &c.kinds[n%len(c.kinds)]
	return k, k.request(n)
}

// start starts the clients. They end when more is false of the number of their next answer.
func (c *traffic) start(more func(n int) bool) {
	for range atOnce {
		c.all.Go(func() {
			for n := int(c.next.Add(1)) - 1; more(n); n = int(c.next.Add(1)) - 1 {
				k, body := c.request(n)
				answer, err := c.m.router.whole(k.path, body, nil)
				switch got, want := compare.Content(answer), c.want[n%len(c.want)]; {
				case err != nil:
					c.lost.Add(1)
					c.m.t.Errorf("stream %d, %s, was lost: %v", n, k.name, err)
				case got != want:
					c.different.Add(1)
					c.m.t.Errorf("stream %d, %s, has\n%s\nwant\n%s", n, k.name, got, want)
				}
			}
		})
	}
}

// String gives the counts.
func (c *traffic) String() string {
	return fmt.Sprintf("%d streams and answers, %d lost, %d different; streams that lost their replica: %s", c.next.Load()-atOnce, c.lost.Load(), c.different.Load(), c.m.router.resumes())
}

// resumes are the router's counts of streams that lost their replica.
func (m *member) resumes() string {
	var list []string
	for _, result := range []string{"resumed", "moved", "ended", "ineligible", "seam", "diverged", "poison", "limit", "budget"} {
		if n := m.metric("kvpilot_router_resumes_total", `result="`+result+`"`); n != 0 {
			list = append(list, fmt.Sprintf("%v %s", n, result))
		}
	}
	return strings.Join(list, ", ")
}

const (
	mortalReplicas = 6
	killEvery      = 5 * time.Second
)

// TestNoStreamIsLost holds of streams of all kinds, and of answers in one piece, that none is lost and none is another one while a replica is killed every five
// seconds and started again. CHAOS_STREAMS is the number of streams.
func TestNoStreamIsLost(t *testing.T) {
	binary(t)
	streams := number(t, "CHAOS_STREAMS", 1000)
	m := startMortals(t, mortalReplicas, []string{"--mean-answer", "60", "--step-time", "30ms"})
	clients := newTraffic(m)
	began, ended := time.Now(), make(chan struct{})
	clients.start(func(n int) bool { return n < streams })
	go func() { clients.all.Wait(); close(ended) }()
	kills := 0
	for every := time.Tick(killEvery); ; kills++ {
		select {
		case <-ended:
			t.Logf("%s, %d replicas killed with kill -9: %s", time.Since(began).Round(time.Second), kills, clients)
			if kills > 2 && m.router.metric("kvpilot_router_resumes_total", `result="resumed"`) == 0 {
				t.Error("no stream was resumed: the test shows nothing")
			}
			return
		case <-every:
			i := kills % len(m.replicas)
			m.kill(i)
			m.revive(i)
		}
	}
}

// TestARollingUpdateOfTheFleet replaces four replicas under a hundred streams, one after the other, each behind a drain that moves its requests: none is lost, and
// each replica is soon empty.
func TestARollingUpdateOfTheFleet(t *testing.T) {
	m := startMortals(t, 4, []string{"--mean-answer", "60", "--step-time", "30ms"})
	clients := newTraffic(m)
	var over atomic.Bool
	clients.start(func(int) bool { return !over.Load() })
	slowest := time.Duration(0)
	for i, r := range m.replicas {
		time.Sleep(2 * time.Second) // until it has its share of the streams
		id, most := m.router.idOf(r.url), 0
		m.router.post("/kvpilot/v1/replicas/"+id+":drain", `{"move":true}`)
		took := m.router.until(time.Minute, func() bool {
			left := m.router.inFlight(id)
			most = max(most, left)
			return left == 0
		})
		t.Logf("%s had %d requests, and was empty after %s", id, most, took.Round(10*time.Millisecond))
		if slowest = max(slowest, took); most == 0 {
			t.Errorf("%s had no requests", id)
		}
		r.Signal(syscall.SIGTERM)
		<-r.Gone()
		m.revive(i)
		m.router.post("/kvpilot/v1/replicas/"+id+":undrain", `{}`)
		m.router.until(30*time.Second, func() bool { return m.router.ready() == len(m.replicas) })
	}
	over.Store(true)
	clients.all.Wait()
	t.Logf("each of %d replicas was empty after %s at most: %s", len(m.replicas), slowest.Round(10*time.Millisecond), clients)
	if limit := programs.Patient(3 * time.Second); slowest > limit {
		t.Errorf("a replica was empty after %s, want %s", slowest, limit)
	}
}

// post sends a command to the router.
func (p *process) post(path, body string) {
	p.t.Helper()
	resp, err := http.Post(p.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %s %s, %v", path, resp.Status, text, err)
	}
}

// inFlight is how many requests are left at a replica that drains.
func (p *process) inFlight(id string) int {
	p.t.Helper()
	resp, err := http.Get(p.url + "/kvpilot/v1/replicas/" + id)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Replica struct {
			Drain *struct {
				InFlight int `json:"in_flight"`
			} `json:"drain"`
		} `json:"replica"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Replica.Drain == nil {
		p.t.Fatalf("%s drains: %v, %+v", id, err, got)
	}
	return got.Replica.Drain.InFlight
}

// TestAKillAtEveryToken kills the replica of an answer with SIGKILL after each number of its events, and holds that its client has the bytes of the undisturbed
// answer, but for ids and times. CHAOS_STEP above 1 leaves positions out.
func TestAKillAtEveryToken(t *testing.T) {
	binary(t)
	step := number(t, "CHAOS_STEP", 9)
	for _, k := range everyKind() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			// Each event has one token while no token takes longer than a step of the engine.
			m := startMortals(t, 3, []string{"--mean-answer", "16", "--step-time", "60ms"}, "--set", "registry.probe.interval=200ms", "--set", "registry.probe.up=1")
			killAtEvery(t, m, &k, step)
		})
	}
}

// killed counts the answers whose replica was killed.
type killed struct{ kills, same, bytes, recut, spared int }

func killAtEvery(t *testing.T, m *mortals, k *kind, step int) {
	ids := m.ids()
	want, err := m.router.whole(k.path, k.request(1), nil)
	if err != nil {
		t.Fatalf("undisturbed: %v", err)
	}
	positions := compare.Events(want)
	if !k.streamed() {
		positions = 16 // of time
	}
	var sum killed
	for at := 0; at < positions; at += step {
		victim := -1
		strike := func(i int) {
			if i >= 0 && victim < 0 {
				victim = i
				m.kill(i)
			}
		}
		var wait sync.WaitGroup
		if at == 0 || !k.streamed() {
			wait.Go(func() { strike(m.indexOf(ids, m.router.busy(time.Duration(at)*60*time.Millisecond))) })
		}
		got, err := m.router.whole(k.path, k.request(1), func(events int, replica string) {
			if k.streamed() && at > 0 && events == at {
				strike(m.indexOf(ids, replica))
			}
		})
		wait.Wait()
		switch {
		case err != nil:
			t.Errorf("killed after %d events: %v", at, err)
		case victim < 0:
			sum.spared++
		case compare.Exact(got) == compare.Exact(want):
			sum.bytes++
			sum.same++
		case compare.Content(got) == compare.Content(want) && compare.Forms(got) == compare.Forms(want):
			sum.recut++
			sum.same++
		default:
			one, other := compare.Difference(got, want)
			t.Errorf("killed after %d events, the client has\n%s\nwant\n%s", at, one, other)
		}
		if victim < 0 {
			continue
		}
		sum.kills++
		m.revive(victim)
		m.router.until(30*time.Second, func() bool { return m.router.ready() == len(m.replicas) })
	}
	t.Logf("| %s | %d | %d | %d | %d | %d |", k.name, positions, sum.kills, sum.same, sum.bytes, sum.recut)
	if sum.kills == 0 || sum.recut > sum.kills/4 {
		t.Errorf("%d kills, %d answers were cut into other events: the test shows little", sum.kills, sum.recut)
	}
}

// busy waits until a replica has had a request for so long, and returns the router's name of it; empty when the request ends before.
func (p *process) busy(long time.Duration) string {
	found, since := "", time.Time{}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		resp, err := http.Get(p.url + "/kvpilot/v1/loads")
		if err != nil {
			return ""
		}
		var got struct {
			Ranks []struct {
				ReplicaID string `json:"replica_id"`
				Requests  int    `json:"requests"`
			} `json:"ranks"`
		}
		err = json.NewDecoder(resp.Body).Decode(&got)
		resp.Body.Close()
		if err != nil {
			return ""
		}
		now := ""
		for _, r := range got.Ranks {
			if r.Requests > 0 {
				now = r.ReplicaID
			}
		}
		switch {
		case now == "" && found != "":
			return ""
		case now != found:
			found, since = now, time.Now()
		}
		if found != "" && time.Since(since) >= long {
			return found
		}
	}
	return ""
}
