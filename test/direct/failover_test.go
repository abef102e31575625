//go:build unix

package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/programs"
	"github.com/kvpilot/kvpilot/test/stack"
)

// routerProcess is one kvpilot of a fleet, in a process of its own.
type routerProcess struct {
	http, admin string
	cmd         *exec.Cmd
}

// startRouters starts two routers of one fleet before the replicas, and waits until they know each other.
func startRouters(t *testing.T, replicas []string) [2]*routerProcess {
	t.Helper()
	var routers [2]*routerProcess
	join := programs.FreeAddress(t)
	for i, gossip := range []string{join, programs.FreeAddress(t)} {
		r := &routerProcess{http: programs.FreeAddress(t), admin: programs.FreeAddress(t)}
		args := []string{"serve", "--http", r.http, "--grpc", "127.0.0.1:0", "--admin", r.admin, "--set", "telemetry.log_level=warn"}
		for _, setting := range []string{
			fmt.Sprintf("name=router-%d", i+1), "listen=" + gossip, "rpc_listen=" + programs.FreeAddress(t), "key=a key for the routers of this test", "join=" + join,
		} {
			args = append(args, "--set", "fleet."+setting)
		}
		for _, replica := range replicas {
			args = append(args, "--replica", replica)
		}
		r.cmd = exec.CommandContext(t.Context(), binary(t), args...)
		launch(t, r.cmd, r.http)
		routers[i] = r
	}
	for _, r := range routers {
		waitFor(t, "the routers know each other", func() bool {
			resp, err := http.Get("http://" + r.http + "/health")
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == http.StatusOK && r.metric(t, "kvpilot_peers_links", `state="up"`) >= 1
		})
	}
	return routers
}

func (r *routerProcess) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return metric(t, &stack.Stack{Admin: r.admin}, name, labels...)
}

func (r *routerProcess) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// shot is one request of a load.
type shot struct {
	through  bool // kvpilot carries it; else kvpilot chooses, and the proxy carries it
	streamed bool
	sent     time.Time
	wait     time.Duration // until the head of a streamed answer, the end of one that is not streamed
	done     time.Time
	status   int
	err      error
}

func (s *shot) String() string {
	return fmt.Sprintf("through the router %v, streamed %v, status %d after %s, ended after %s: %v", s.through, s.streamed, s.status, s.wait, s.done.Sub(s.sent), s.err)
}

// fire sends one request. A streamed answer takes about a second, an unstreamed one little.
func fire(ctx context.Context, client *http.Client, url string, s *shot) {
	path, prompt, tokens := "/v1/chat/completions", `"messages":[{"role":"user","content":"a story"}]`, 5
	if s.through {
		path, prompt = "/v1/completions", `"prompt":"a story"`
	}
	if s.streamed {
		tokens = 2000
	}
	body := fmt.Sprintf(`{"model":"sim",%s,"max_tokens":%d,"ignore_eos":true,"stream":%v}`, prompt, tokens, s.streamed)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		s.err = err
		return
	}
	req.Header.Set("Content-Type", "application/json")
	s.sent = time.Now()
	defer func() { s.done = time.Now() }()
	resp, err := client.Do(req)
	s.wait = time.Since(s.sent)
	if err != nil {
		s.err = err
		return
	}
	defer resp.Body.Close()
	s.status = resp.StatusCode
	text, err := io.ReadAll(resp.Body)
	if !s.streamed {
		s.wait = time.Since(s.sent)
	}
	switch {
	case err != nil:
		s.err = err
	case s.status != http.StatusOK:
		s.err = errors.New(string(text))
	case s.streamed && !strings.HasSuffix(string(text), "data: [DONE]\n\n"):
		s.err = fmt.Errorf("the stream ends after %d bytes", len(text))
	}
}

// load sends 20 requests per second of all four kinds, and calls hit after the first part of them, with no request sent meanwhile.
// It returns when every request has ended, or their time is over.
func load(t *testing.T, url string, before, after time.Duration, hit func()) (shots []*shot, at time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), before+after+4*time.Second)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	const gap = 50 * time.Millisecond
	dice := rand.New(rand.NewPCG(1, 1))
	var running sync.WaitGroup
	began := time.Now()
	for n := range int((before + after) / gap) {
		time.Sleep(time.Until(began.Add(time.Duration(n) * gap)))
		if n == int(before/gap) {
			hit()
			at = time.Now()
		}
		s := &shot{through: dice.IntN(2) == 1, streamed: dice.IntN(2) == 1} // in no step with the proxy's turns
		if left := int(before/gap) - n; left > 0 && left <= 5 {             // both routers carry streams when it happens
			s.through, s.streamed = true, true
		}
		shots = append(shots, s)
		running.Go(func() { fire(ctx, client, url, s) })
	}
	running.Wait()
	return shots, at
}

// worst is the longest wait of the requests that were sent between two moments.
func worst(shots []*shot, from, to time.Time) (longest *shot) {
	longest = &shot{}
	for _, s := range shots {
		if !s.sent.Before(from) && s.sent.Before(to) && s.wait > longest.wait {
			longest = s
		}
	}
	return longest
}

// twoRouters starts two routers behind the proxy, which sends /v1/completions through them and asks them about chats.
func twoRouters(t *testing.T, p proxy) (url string, routers [2]*routerProcess) {
	t.Helper()
	s := stack.Start(t, stack.Options{Replicas: 3, Engine: func(c *enginesim.Config) { c.Core.Timing.Speed = 20 }})
	routers = startRouters(t, s.Replicas)
	url = p.start(t, proxyOptions{through: true}, routers[0].http, routers[1].http)
	for range 8 { // connections, and the pool's decider
		fire(t.Context(), http.DefaultClient, url, &shot{through: true})
		fire(t.Context(), http.DefaultClient, url, &shot{})
	}
	return url, routers
}

// newWait is what a new request waits at most when a router was killed; a machine's noise, which the same run shows before, is added.
const newWait = 200 * time.Millisecond

// testKilledRouter kills either of two routers: the requests that wait go to the other one, and so do new ones.
func testKilledRouter(t *testing.T, p proxy) {
	for victim := range 2 {
		t.Run(fmt.Sprintf("router %d", victim+1), func(t *testing.T) {
			url, routers := twoRouters(t, p)
			carried := 0.0
			shots, killed := load(t, url, 800*time.Millisecond, 800*time.Millisecond, func() {
				carried = routers[victim].metric(t, "kvpilot_router_requests_in_flight")
				routers[victim].signal(t, syscall.SIGKILL)
			})
			lost := 0
			for _, s := range shots {
				switch {
				case s.err == nil:
				case s.through && s.streamed && s.sent.Before(killed) && s.status == http.StatusOK:
					lost++
				default:
					t.Errorf("lost, sent %s after the kill: %s", s.sent.Sub(killed), s)
				}
			}
			if carried == 0 || float64(lost) > carried {
				t.Errorf("%d streams ended with the router, which carried %v requests", lost, carried)
			}
			usual, after := worst(shots, time.Time{}, killed), worst(shots, killed, time.Now())
			if after.wait > programs.Patient(newWait)+usual.wait {
				t.Errorf("a new request waited %s; before, %s at most: %s", after.wait, usual.wait, after)
			}
			t.Logf("%d requests; %d streams ended with the router, which carried %v requests; longest wait %s before, %s after the kill",
				len(shots), lost, carried, usual.wait, after.wait)
		})
	}
}

// testStoppedRouter stops a router, whose connections then stay open and silent, and lets it go on. Requests that it has wait meanwhile
// and are not lost; new ones go to the other router once the proxy has noticed: after seen, or never if that is 0.
func testStoppedRouter(t *testing.T, p proxy, seen time.Duration) {
	url, routers := twoRouters(t, p)
	go func() { // as the load ends
		select {
		case <-t.Context().Done():
		case <-time.After(time.Second + seen + 500*time.Millisecond):
		}
		routers[1].cmd.Process.Signal(syscall.SIGCONT)
	}()
	shots, stopped := load(t, url, 500*time.Millisecond, seen+500*time.Millisecond, func() { routers[1].signal(t, syscall.SIGSTOP) })
	late := 0
	for _, s := range shots {
		if s.err != nil {
			t.Errorf("lost, sent %s after the stop: %s", s.sent.Sub(stopped), s)
		}
		if s.wait > newWait {
			late++
		}
	}
	usual, after := worst(shots, time.Time{}, stopped.Add(-100*time.Millisecond)), worst(shots, stopped.Add(seen), time.Now())
	if seen > 0 && after.wait > programs.Patient(newWait)+usual.wait {
		t.Errorf("%s after the stop, a new request waited %s; before, %s at most: %s", seen, after.wait, usual.wait, after)
	}
	t.Logf("%d requests, %d of them waited for the stopped router; longest wait %s before, %s for requests sent %s after the stop",
		len(shots), late, usual.wait, after.wait, seen)
}

func TestHAProxyFailover(t *testing.T) {
	haproxy{}.program(t)
	t.Run("killed", func(t *testing.T) { testKilledRouter(t, haproxy{}) })
	t.Run("stopped", func(t *testing.T) { testStoppedRouter(t, haproxy{}, 2*time.Second) })
}

func TestNginxFailover(t *testing.T) {
	nginx{}.program(t)
	t.Run("killed", func(t *testing.T) { testKilledRouter(t, nginx{}) })
	t.Run("stopped", func(t *testing.T) { testStoppedRouter(t, nginx{}, 0) })
}
