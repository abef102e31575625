package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet answers for replicas in memory; each host does what its script says.
type fleet struct {
	mu    sync.Mutex
	asked map[string]int
	does  map[string]func(*http.Request) (*http.Response, error)
}

func newFleet() *fleet {
	return &fleet{asked: map[string]int{}, does: map[string]func(*http.Request) (*http.Response, error){}}
}

// Do implements Sender.
func (f *fleet) Do(ctx context.Context, to upstream.Target, r *upstream.Request) (*upstream.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, to.Replica.URL+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	got, err := f.respond(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return nil, err
	}
	resp := &upstream.Response{Status: got.StatusCode, Header: got.Header, ContentLength: got.ContentLength}
	resp.Restore(body)
	return resp, nil
}

// respond does what the host's script says.
func (f *fleet) respond(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked[req.URL.Host]++
	do := f.does[req.URL.Host]
	f.mu.Unlock()
	if do == nil {
		return answer(200, `{"count":2,"max_model_len":100,"tokens":[1,2]}`)(req)
	}
	return do(req)
}

func (f *fleet) set(host string, do func(*http.Request) (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.does[host] = do
}

func (f *fleet) count(host string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[host]
}

func answer(status int, body string, headers ...string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i+1 < len(headers); i += 2 {
			h.Set(headers[i], headers[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}, nil
	}
}

func after(d time.Duration, do func(*http.Request) (*http.Response, error)) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return do(req)
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

var okay = answer(200, `{"count":2,"max_model_len":100,"tokens":[1,2]}`)

func replicas(names ...string) []*replica.Replica {
	var list []*replica.Replica
	for _, n := range names {
		list = append(list, &replica.Replica{ID: replica.ID(n), URL: "http://" + n, State: replica.StateReady, Version: "0.17.0"})
	}
	return list
}

func ask(t *testing.T, p *Pool, rs []*replica.Replica) (*Answer, error) {
	t.Helper()
	return p.Do(t.Context(), rs, &Job{Op: OpText, Model: "m", Text: "x"})
}

var asked atomic.Int64

// askNew asks what was not asked before.
func askNew(t *testing.T, p *Pool, rs []*replica.Replica) (*Answer, error) {
	t.Helper()
	return p.Do(t.Context(), rs, &Job{Op: OpText, Model: "m", Text: fmt.Sprint("text ", asked.Add(1))})
}

func kind(err error) string {
	var refusal *ClientFault
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &refusal):
		return "client_fault"
	}
	return string(KindOf(err))
}

func TestRepeatedFailuresOpenTheBreakerAndOneTrialClosesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		f.set("a", answer(500, `{"error":"boom"}`))
		rs := replicas("a")
		for range 2 { // each is asked again
			if _, err := askNew(t, p, rs); kind(err) != "status" {
				t.Fatalf("first: %v", err)
			}
		}
		opened := f.count("a")
		if _, err := ask(t, p, rs); kind(err) != "breaker_open" || f.count("a") != opened {
			t.Errorf("then: %v after %d more calls, want breaker_open and none", err, f.count("a")-opened)
		}
		time.Sleep(breakerFirst + time.Millisecond)
		if _, err := ask(t, p, rs); kind(err) != "status" || f.count("a") != opened+1 {
			t.Errorf("trial: %v after %d calls, want status and one", err, f.count("a")-opened)
		}
		f.set("a", okay)
		if _, err := ask(t, p, rs); kind(err) != "breaker_open" {
			t.Errorf("behind a failed trial: %v, want breaker_open", err)
		}
		time.Sleep(2*breakerFirst + time.Millisecond)
		for range 3 {
			if _, err := ask(t, p, rs); err != nil {
				t.Errorf("recovered: %v", err)
			}
		}
		p.wg.Wait()
	})
}

func TestNoClientFaultOpensTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a")
		for _, status := range []int{400, 404, 422} {
			f.set("a", answer(status, `{"error":{"message":"The model m does not exist.","type":"NotFoundError","code":404}}`))
			for range 10 {
				if _, err := ask(t, p, rs); kind(err) != "client_fault" {
					t.Fatalf("%d: %v, want a client fault", status, err)
				}
			}
		}
		f.set("a", answer(429, `{}`))
		if _, err := ask(t, p, rs); kind(err) != "status" {
			t.Errorf("429: %v", err)
		}
		time.Sleep(coolOverload + time.Millisecond)
		f.set("a", okay)
		if _, err := ask(t, p, rs); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		p.wg.Wait()
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		f.set("a", answer(429, `{}`, "Retry-After", "3"))
		if _, err := ask(t, p, replicas("a", "b")); err != nil {
			t.Fatalf("with another replica: %v", err)
		}
		if f.count("a") == 0 {
			_, _ = ask(t, p, replicas("a", "b")) // the turn decides who is asked first
		}
		was := f.count("a")
		for range 10 {
			if _, err := ask(t, p, replicas("a", "b")); err != nil {
				t.Fatal(err)
			}
		}
		if f.count("a") != was {
			t.Errorf("asked %d times before Retry-After had passed", f.count("a")-was)
		}
		if _, err := ask(t, p, replicas("a")); kind(err) != "breaker_open" {
			t.Errorf("alone: %v, want breaker_open at once", err)
		}
		f.set("a", okay)
		time.Sleep(3*time.Second + time.Millisecond)
		if _, err := ask(t, p, replicas("a")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		p.wg.Wait()
	})
}

func TestAShortRetryAfterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		first := true
		f.set("a", func(req *http.Request) (*http.Response, error) {
			if first {
				first = false
				return answer(503, `{}`, "Retry-After", "0.5")(req)
			}
			return okay(req)
		})
		from := time.Now()
		if _, err := ask(t, p, replicas("a")); err != nil || time.Since(from) < 500*time.Millisecond {
			t.Errorf("answered %v after %v, want ok after half a second", err, time.Since(from))
		}
		p.wg.Wait()
	})
}

func TestASlowAnswerIsHedgedAndAHungOneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a", "b")
		for _, h := range []string{"a", "b"} {
			f.set(h, after(20*time.Millisecond, okay))
		}
		for range 32 {
			if _, err := ask(t, p, rs); err != nil {
				t.Fatal(err)
			}
		}
		f.set("a", after(time.Hour, okay))
		var longest time.Duration
		for range 8 {
			from := time.Now()
			if _, err := ask(t, p, rs); err != nil {
				t.Fatal(err)
			}
			longest = max(longest, time.Since(from))
		}
		if longest > 60*time.Millisecond {
			t.Errorf("a question took %v although the other replica needs 20 ms", longest)
		}
		p.wg.Wait()
	})
}

// When everything hangs, many callers at once wait for the first limits only, and later ones
// do not wait at all.
func TestHungReplicasCostTheirFirstLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a", "b")
		for _, h := range []string{"a", "b"} {
			f.set(h, after(10*time.Millisecond, okay))
		}
		for range 32 {
			if _, err := ask(t, p, rs); err != nil {
				t.Fatal(err)
			}
		}
		for _, h := range []string{"a", "b"} {
			f.set(h, after(time.Hour, okay))
		}
		from := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := askNew(t, p, rs); err == nil {
					t.Error("a hung replica answered")
				}
			})
		}
		wg.Wait()
		if took := time.Since(from); took > 2*time.Second {
			t.Errorf("the first callers waited for %v", took)
		}
		from = time.Now()
		if _, err := ask(t, p, rs); kind(err) != "breaker_open" || time.Since(from) > 0 {
			t.Errorf("a later caller: %v after %v, want breaker_open at once", err, time.Since(from))
		}
		p.wg.Wait()
	})
}

func TestTheLeastLoadedIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a", "b", "c")
		for _, h := range []string{"a", "b", "c"} {
			f.set(h, after(100*time.Millisecond, okay))
		}
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				if _, err := ask(t, p, rs); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for _, h := range []string{"a", "b", "c"} {
			e := (*p.table.live.Load())[replica.ID(h)]
			if n := e.inflight.Load(); n != 10 {
				t.Errorf("%s has %d of 30 questions", h, n)
			}
			if n := f.count(h); n != p.cfg.Concurrency {
				t.Errorf("%s works on %d at once, want %d", h, n, p.cfg.Concurrency)
			}
		}
		wg.Wait()
		p.wg.Wait()
	})
}

func TestTheCallersEndReachesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		ended := make(chan error, 1)
		f.set("a", func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			ended <- req.Context().Err()
			return nil, req.Context().Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := p.Do(ctx, replicas("a"), &Job{Op: OpText, Text: "x"})
		if kind(err) != "timeout" || <-ended == nil {
			t.Errorf("Do() = %v, want timeout", err)
		}
		p.wg.Wait()
		for i := range 2 { // one fewer than open the breaker
			p.report((*p.table.live.Load())["a"], breaker.Pass{}, retry.Find(retry.Unreachable, retry.Origin{Request: uint64(i)}))
		}
		if (*p.table.live.Load())["a"].isOpen() {
			t.Error("a hurried caller counted against the replica")
		}
	})
}

func TestEndpointsExpireUnusedAndGiveUpTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.MaxEndpoints = 3
		f := newFleet()
		p := New(cfg, Params{Sender: f})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		for _, n := range []string{"a", "b", "c"} {
			if _, err := ask(t, p, replicas(n)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ask(t, p, replicas("d")); kind(err) != "no_endpoint" {
			t.Errorf("a fourth one beside three just used: %v, want no_endpoint", err)
		}
		f.set("b", answer(500, `{}`))
		time.Sleep(window)
		for range 2 { // opens its breaker
			_, _ = askNew(t, p, replicas("b"))
		}
		synctest.Wait()
		if _, err := ask(t, p, replicas("d")); err != nil {
			t.Errorf("the unhealthy one did not give up its place: %v", err)
		}
		was := f.count("a")
		time.Sleep(cfg.HealthPeriod*2 + time.Second)
		if f.count("a") == was {
			t.Error("an idle endpoint was not probed")
		}
		time.Sleep(cfg.TTL + cfg.HealthPeriod)
		if n := len(p.Status()); n != 0 {
			t.Errorf("%d endpoints are known although none was used for the TTL", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestRouteSupportIsLearnedPerReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a")
		rs[0].Version = "" // unknown: render is tried
		var paths []string
		f.set("a", func(req *http.Request) (*http.Response, error) {
			paths = append(paths, req.URL.Path)
			if strings.HasSuffix(req.URL.Path, "/render") {
				return answer(404, `{"detail":"Not Found"}`)(req)
			}
			return okay(req)
		})
		for range 2 {
			if _, err := p.Do(t.Context(), rs, &Job{Op: OpPrompt, Model: "m", Prompt: chatPrompt(`{"role":"user","content":"x"}`)}); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(paths); got != "[/v1/chat/completions/render /tokenize /tokenize]" {
			t.Errorf("asked %s", got)
		}
		p.wg.Wait()
	})
}

func TestDurationsMeanWhatTheySay(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"timeout 0": func(c *Config) { c.Timeout = 0 }, "timeout negative": func(c *Config) { c.Timeout = -1 },
		"health negative": func(c *Config) { c.HealthPeriod = -1 }, "ttl negative": func(c *Config) { c.TTL = -1 },
		"no endpoints": func(c *Config) { c.MaxEndpoints = 0 }, "concurrency": func(c *Config) { c.Concurrency = 0 },
		"answers": func(c *Config) { c.MaxAnswerBytes = 1 },
	} {
		c := DefaultConfig()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	c := DefaultConfig()
	if c.HealthPeriod != 30*time.Second || c.TTL != 5*time.Minute || c.MaxEndpoints != 100 || c.Validate() != nil {
		t.Errorf("defaults: %+v, %v", c, c.Validate())
	}
	c.HealthPeriod, c.TTL = 0, 0 // no probes, no expiry
	if err := c.Validate(); err != nil {
		t.Errorf("zero periods: %v", err)
	}
}
