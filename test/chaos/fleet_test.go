//go:build unix

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fleet is several routers before the same replicas.
type fleet struct {
	t        *testing.T
	routers  []*member
	replicas []*process
}

// member is one router of the fleet.
type member struct {
	*process
	args    []string
	admin   string
	leaving atomic.Bool // clients are not sent to it
}

const key = "a key for the routers of this test"

// startFleet starts n routers before simulated replicas. advertise gives each an address of its own; empty: the one that it listens at.
func startFleet(t *testing.T, n, replicas int, advertise ...string) *fleet {
	t.Helper()
	return startFleetWith(t, "", n, replicas, advertise...)
}

// startFleetWith starts a fleet with further settings.
func startFleetWith(t *testing.T, more string, n, replicas int, advertise ...string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	settings := more + "registry:\n  replicas:\n"
	for range replicas {
		r := start(t, true, "sim", "--port", "0", "--events-port", "0", "--replay-port", "0")
		// URL  model sim, as vLLM VERSION, events ENDPOINT, replays ENDPOINT
		_, rest, _ := strings.Cut(r.line, "events ")
		events, replays, ok := strings.Cut(strings.TrimSpace(rest), ", replays ")
		if !ok {
			t.Fatalf("no endpoints in %q", r.line)
		}
		settings += fmt.Sprintf("    - url: %s\n      events: {endpoint: %q, replay: %q}\n", r.url, events, replays)
		f.replicas = append(f.replicas, r)
	}
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	join := ""
	for i := range n {
		m := &member{admin: ownPort(t)}
		http, gossip, rpc := ownPort(t), ownPort(t), ownPort(t)
		m.args = []string{
			"serve", "--http", http, "--config", file, "--grpc", "127.0.0.1:0", "--admin", m.admin, "--set", "telemetry.log_level=info", "--set", "listen.drain_delay=1s",
			"--set", "fleet.name=router-" + strconv.Itoa(i), "--set", "fleet.listen=" + gossip, "--set", "fleet.rpc_listen=" + rpc, "--set", "fleet.key=" + key,
		}
		if join == "" {
			join = gossip
		}
		if len(advertise) > 0 {
			_, port, _ := strings.Cut(gossip, ":")
			at := advertise[i] + ":" + port
			m.args = append(m.args, "--set", "fleet.advertise="+at)
			if i == 0 {
				join = at
			}
			f.prepare(i, gossip, rpc, advertise[i])
		}
		m.args = append(m.args, "--set", "fleet.join="+join)
		f.routers = append(f.routers, m)
		f.run(m)
	}
	f.untilJoined(30 * time.Second)
	return f
}

// ownPort is a free one below those that the system gives to connections, so that a router finds it free again after a restart.
func ownPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// ways are the cutters before routers that advertise an address of their own.
var ways sync.Map // of *fleet and index to *cutter

// prepare opens the way to a router.
func (f *fleet) prepare(i int, gossip, rpc, host string) {
	c := newCutter(f.t)
	for _, address := range []string{gossip, rpc} {
		_, port, _ := strings.Cut(address, ":")
		c.tcp(f.t, host+":"+port, address)
	}
	_, port, _ := strings.Cut(gossip, ":")
	c.udp(f.t, host+":"+port, gossip)
	ways.Store(fmt.Sprintf("%p/%d", f, i), c)
}

func (f *fleet) way(i int) *cutter {
	c, _ := ways.Load(fmt.Sprintf("%p/%d", f, i))
	return c.(*cutter)
}

// run starts a router and waits until it is ready.
func (f *fleet) run(m *member) {
	f.t.Helper()
	m.process = start(f.t, false, m.args...)
	m.process.url = "http://" + m.args[2]
	m.until(20*time.Second, func() bool { return m.process.ready() == len(f.replicas) })
}

// metric is the sum of a metric's series whose text has part in it.
func (m *member) metric(name, part string) float64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.admin+"/metrics", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	sum := 0.0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') && strings.Contains(rest, part) {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				f := fmt.Sprintf("%s: %v", line, err)
				panic(f)
			}
			sum += v
		}
	}
	return sum
}

func (f *fleet) untilJoined(limit time.Duration) {
	f.t.Helper()
	for _, m := range f.routers {
		m.until(limit, func() bool { return m.metric("kvpilot_peers_links", `state="up"`) >= float64(len(f.routers)-1) })
	}
	f.routers[0].ask(0, time.Now(), false, 10*time.Second) // so that the pool's decider is looked for
	for _, m := range f.routers {
		m.ask(0, time.Now(), false, 10*time.Second)
	}
	f.routers[0].until(limit, func() bool { return len(f.deciders()) == 1 })
}

// deciders are the living routers that decide for the pool.
func (f *fleet) deciders() (list []*member) {
	for _, m := range f.routers {
		if m.metric("kvpilot_peers_decider", "") == 1 {
			list = append(list, m)
		}
	}
	return list
}

// shot is one request of a load over the fleet.
type shot struct {
	result
	router *member
	cached int
	prompt int
}

// rate is the load in requests per second.
func rate() int {
	if n, err := strconv.Atoi(os.Getenv("CHAOS_RATE")); err == nil {
		return n
	}
	return 200
}

// fire sends requests at the rate to routers at random, as a Service does, and calls once at its moment. A connection that is
// refused goes to another router.
func (f *fleet) fire(during, moment time.Duration, once func()) []shot {
	var mu sync.Mutex
	var all []shot
	var wait sync.WaitGroup
	dice := rand.New(rand.NewPCG(1, 1))
	began := time.Now()
	gap := time.Second / time.Duration(rate())
	for n := 0; time.Duration(n)*gap < during; n++ {
		at := time.Duration(n) * gap
		time.Sleep(time.Until(began.Add(at)))
		if once != nil && at >= moment {
			wait.Go(once)
			once = nil
		}
		var open []*member
		for _, m := range f.routers {
			if !m.leaving.Load() {
				open = append(open, m)
			}
		}
		m, conversation := open[dice.IntN(len(open))], dice.IntN(60)
		wait.Go(func() {
			s := m.shoot(n, conversation, began)
			mu.Lock()
			all = append(all, s)
			mu.Unlock()
		})
	}
	wait.Wait()
	slices.SortFunc(all, func(a, b shot) int { return int(a.at - b.at) })
	return all
}

// shoot sends one streamed request of a conversation with 60 others of the same beginning.
func (m *member) shoot(n, conversation int, began time.Time) (s shot) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sent := time.Now()
	s.router, s.at = m, sent.Sub(began)
	defer func() { s.took = time.Since(sent) }()
	prompt := strings.Repeat(fmt.Sprintf("conversation %d says the same again. ", conversation), 40) + fmt.Sprint("question ", n)
	body, _ := json.Marshal(map[string]any{
		"model": "sim", "prompt": prompt, "max_tokens": 8, "ignore_eos": true, "stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.process.url+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		s.err = err
		return s
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.err = err
		return s
	}
	defer resp.Body.Close()
	s.status, s.replica = resp.StatusCode, resp.Header.Get("X-Kvpilot-Replica")
	read := bufio.NewReader(resp.Body)
	for {
		line, err := read.ReadString('\n')
		if s.first == 0 && len(line) > 1 {
			s.first = time.Since(sent)
		}
		if at := strings.Index(line, `"usage":{`); at >= 0 {
			var u struct {
				PromptTokens        int `json:"prompt_tokens"`
				PromptTokensDetails struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
			if json.NewDecoder(strings.NewReader(line[at+len(`"usage":`):])).Decode(&u) == nil {
				s.prompt, s.cached = u.PromptTokens, u.PromptTokensDetails.CachedTokens
			}
		}
		if err == io.EOF {
			return s
		}
		if err != nil {
			s.err = err
			return s
		}
	}
}

// lost counts the requests that failed at routers other than except.
func (f *fleet) lost(all []shot, except *member) (n int) {
	for _, s := range all {
		if (s.err != nil || s.status != 200) && s.router != except {
			n++
			f.t.Logf("lost at %s: %s", s.router.process.url, s.result)
		}
	}
	return n
}

// p99 is the 99th percentile of the time to the first byte of what was sent between two moments to routers other than except, and
// the share of prompt tokens that was cached.
func p99(all []shot, from, to time.Duration, except *member) (first time.Duration, cached float64) {
	var times []time.Duration
	var hit, prompt int
	for _, s := range all {
		if s.at >= from && s.at < to && s.router != except && s.status == 200 && s.err == nil {
			times = append(times, s.first)
			hit, prompt = hit+s.cached, prompt+s.prompt
		}
	}
	if len(times) == 0 {
		return 0, 0
	}
	slices.Sort(times)
	return times[len(times)*99/100], float64(hit) / float64(max(1, prompt))
}

// loads are the requests in flight by rank as a router reports them.
func (m *member) loads() (text string, sum int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, m.process.url+"/kvpilot/v1/loads", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error(), -1
	}
	defer resp.Body.Close()
	var got struct {
		Ranks []struct {
			ReplicaID string `json:"replica_id"`
			Requests  int    `json:"requests"`
			Waiting   int    `json:"waiting"`
		} `json:"ranks"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return err.Error(), -1
	}
	for _, r := range got.Ranks {
		text += fmt.Sprintf(" %s:%d/%d", r.ReplicaID, r.Requests, r.Waiting)
		sum += r.Requests
	}
	return text, sum
}

// idle checks that all routers that live report the same loads, and none.
func (f *fleet) idle(dead *member) {
	f.t.Helper()
	for _, m := range f.routers {
		if m == dead {
			continue
		}
		for end := time.Now().Add(10 * time.Second); ; {
			text, sum := m.loads()
			if sum == 0 {
				break
			}
			if time.Now().After(end) {
				f.t.Errorf("%s, idle, reports%s", m.process.url, text)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (f *fleet) other(than *member) *member {
	return f.routers[slices.IndexFunc(f.routers, func(m *member) bool { return m != than })]
}

func TestFleetDeciderKilled(t *testing.T) {
	f := startFleet(t, 3, 8)
	dead := f.deciders()[0]
	const moment = 5 * time.Second
	var found time.Duration
	all := f.fire(12*time.Second, moment, func() {
		dead.leaving.Store(true)
		killed := time.Now()
		dead.Kill()
		f.other(dead).until(10*time.Second, func() bool {
			for _, m := range f.deciders() {
				if m != dead {
					return true
				}
			}
			return false
		})
		found = time.Since(killed)
	})
	before, _ := p99(all, 2*time.Second, moment, dead)
	during, _ := p99(all, moment, moment+time.Second, dead)
	lost := f.lost(all, dead)
	t.Logf("kill -9 of the decider at %d/s: %d of %d lost, a new decider after %s, p99 TTFT %s before, %s in that second", rate(), lost, len(all), found, before, during)
	if lost > 0 || found > 1500*time.Millisecond || during > 2*max(before, 50*time.Millisecond) {
		t.Error("more than the bounds")
	}
	f.idle(dead)
}

func TestFleetDeciderStopped(t *testing.T) {
	f := startFleet(t, 3, 8)
	stopped := f.deciders()[0]
	const moment = 4 * time.Second
	all := f.fire(20*time.Second, moment, func() {
		stopped.leaving.Store(true)
		stopped.Signal(syscall.SIGSTOP)
		time.Sleep(10 * time.Second)
		stopped.Signal(syscall.SIGCONT)
		time.Sleep(time.Second)
		stopped.leaving.Store(false)
	})
	before, _ := p99(all, 2*time.Second, moment, stopped)
	during, _ := p99(all, moment, moment+10*time.Second, stopped)
	lost := f.lost(all, nil)
	t.Logf("SIGSTOP of the decider for 10 s at %d/s: %d of %d lost, p99 TTFT %s before, %s at the others during the stop", rate(), lost, len(all), before, during)
	if lost > 0 {
		t.Error("requests were lost")
	}
	f.idle(nil)
	f.oneDecider()
}

// oneDecider waits until the routers agree.
func (f *fleet) oneDecider() {
	f.t.Helper()
	f.routers[0].until(10*time.Second, func() bool { return len(f.deciders()) == 1 })
}

func TestFleetPartition(t *testing.T) {
	f := startFleet(t, 2, 8, "127.0.0.2", "127.0.0.3")
	const moment = 4 * time.Second
	alone := 0
	all := f.fire(20*time.Second, moment, func() {
		f.way(0).set(true)
		f.way(1).set(true)
		time.Sleep(5 * time.Second)
		alone = len(f.deciders())
		time.Sleep(5 * time.Second)
		f.way(0).set(false)
		f.way(1).set(false)
	})
	before, _ := p99(all, 2*time.Second, moment, nil)
	during, _ := p99(all, moment, moment+10*time.Second, nil)
	lost := f.lost(all, nil)
	t.Logf("partition into two halves for 10 s at %d/s: %d of %d lost, %d deciders then, p99 TTFT %s before, %s then", rate(), lost, len(all), alone, before, during)
	if lost > 0 || alone != 2 {
		t.Errorf("lost %d; %d deciders in two halves", lost, alone)
	}
	f.idle(nil)
	f.oneDecider()
}

func TestFleetRollingRestart(t *testing.T) {
	f := startFleet(t, 3, 8)
	const moment = 8 * time.Second
	var restarted atomic.Int64
	began := time.Now()
	all := f.fire(45*time.Second, moment, func() {
		for _, m := range f.routers {
			m.leaving.Store(true) // as an endpoint that is not ready any more
			m.Signal(syscall.SIGTERM)
			<-m.Gone()
			f.run(m)
			m.leaving.Store(false)
		}
		restarted.Store(int64(time.Since(began)))
	})
	end := time.Duration(restarted.Load())
	_, before := p99(all, 3*time.Second, moment, nil)
	_, after := p99(all, end, end+10*time.Second, nil)
	lost := f.lost(all, nil)
	t.Logf("rolling restart of 3 routers at %d/s in %s: %d of %d lost, cached share %.1f %% before, %.1f %% in the 10 s after", rate(), end-moment, lost, len(all), 100*before, 100*after)
	if lost > 0 || end == 0 || after < 0.95*before {
		t.Error("more than the bounds")
	}
	f.idle(nil)
	f.oneDecider()
}
