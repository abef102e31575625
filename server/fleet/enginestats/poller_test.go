package enginestats_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine answers /metrics without a socket, so that it works in virtual time.
type engine struct {
	mu     sync.Mutex
	page   string
	status int
	asked  int
	hangs  bool
	auth   string
	host   string
	date   time.Time
}

func (e *engine) set(change func(*engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) seen() (asked int, auth string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked, e.auth
}

func (e *engine) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked++
	e.auth, e.host = req.Header.Get("Authorization"), req.URL.Host
	if e.hangs {
		e.mu.Unlock()
		<-req.Context().Done()
		e.mu.Lock()
		return nil, req.Context().Err()
	}
	resp := &http.Response{StatusCode: e.status, Body: io.NopCloser(strings.NewReader(e.page)), Request: req, Header: http.Header{}}
	if !e.date.IsZero() {
		resp.Header.Set("Date", e.date.UTC().Format(http.TimeFormat))
	}
	return resp, nil
}

func load(running, waiting int) string {
	return fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} %d\n", running, waiting)
}

func virtual(t *testing.T, e *engine, params enginestats.Params, test func(t *testing.T, p *enginestats.Poller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		params.Client = &http.Client{Transport: e}
		p := enginestats.New(enginestats.DefaultConfig(), params)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		test(t, p)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func node(slots ...replica.Slot) *replica.Replica {
	return &replica.Replica{ID: "a", URL: "http://a:8000", APIKey: secret.New("k"), Slots: slots}
}

func TestStatsArriveAndGrowStale(t *testing.T) {
	e := &engine{status: 200, page: load(3, 1)}
	virtual(t, e, enginestats.Params{}, func(t *testing.T, p *enginestats.Poller) {
		if _, ok := p.Stats(0); ok {
			t.Error("statistics of nobody")
		}
		p.Add(0, node(0), 0)
		pass(200 * time.Millisecond)
		s, ok := p.Stats(0)
		if !ok || s.Running != 3 || s.Waiting != 1 || !s.Fresh(time.Now()) {
			t.Errorf("first report: %+v, %v", s, ok)
		}
		if _, auth := e.seen(); auth != "Bearer k" {
			t.Errorf("authorization %q", auth)
		}
		e.set(func(e *engine) { e.status = 500 })
		before := s.At
		pass(time.Minute)
		s, ok = p.Stats(0)
		if !ok || s.At.Sub(before) > 2*time.Second || s.Fresh(time.Now()) {
			t.Errorf("a minute of failures: %+v, %v, want the old report, not fresh", s, ok)
		}
		before10, _ := e.seen()
		pass(10 * time.Minute)
		if after10, _ := e.seen(); after10-before10 > 50 {
			t.Errorf("%d looks at a failing replica in 10 minutes, want at most 50", after10-before10)
		}
		e.set(func(e *engine) { e.status, e.page = 200, load(5, 0) })
		pass(30 * time.Second)
		if s, _ := p.Stats(0); s.Running != 5 || !s.Fresh(time.Now()) {
			t.Errorf("after it came back: %+v", s)
		}
		p.Remove(0)
		asked, _ := e.seen()
		pass(time.Minute)
		if again, _ := e.seen(); again != asked {
			t.Error("a removed rank is still polled")
		}
		if _, ok := p.Stats(0); ok {
			t.Error("a removed rank still has statistics")
		}
	})
}

func TestMetricsMayHaveAPortOfTheirOwn(t *testing.T) {
	e := &engine{status: 200, page: load(3, 1)}
	virtual(t, e, enginestats.Params{}, func(t *testing.T, p *enginestats.Poller) {
		own := node(0)
		own.MetricsURL = "http://a:9400"
		p.Add(0, own, 0)
		pass(200 * time.Millisecond)
		p.Renew(node(0)) // the port's setting is gone, the rank stays
		e.set(func(e *engine) {
			if e.host != "a:9400" {
				t.Errorf("metrics were read from %s", e.host)
			}
		})
		pass(3 * time.Second)
		e.set(func(e *engine) {
			if e.host != "a:8000" {
				t.Errorf("without a port of their own they are read from %s", e.host)
			}
		})
	})
}

func TestRanksGetTheirOwnEngines(t *testing.T) {
	page := ""
	for i := range 4 {
		page += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\"} %d\n", i, 10+i)
	}
	e := &engine{status: 200, page: page}
	virtual(t, e, enginestats.Params{}, func(t *testing.T, p *enginestats.Poller) {
		r := node(7, 8, 9, 5)
		for rank, slot := range r.Slots {
			p.Add(slot, r, rank)
		}
		pass(time.Second)
		for rank, slot := range r.Slots {
			if s, _ := p.Stats(slot); s.Running != 10+rank {
				t.Errorf("rank %d: %d running, want %d", rank, s.Running, 10+rank)
			}
		}
		// One process of a larger group shows its own rank only, under its number in the group.
		e.set(func(e *engine) { e.page = "vllm:num_requests_running{engine=\"6\"} 3\n" })
		p.Add(20, &replica.Replica{ID: "b", URL: "http://b:8000"}, 0)
		pass(time.Second)
		if s, _ := p.Stats(20); s.Running != 3 {
			t.Errorf("engine 6 alone: %d running, want 3", s.Running)
		}
		for _, slot := range r.Slots {
			p.Remove(slot)
		}
		p.Add(7, node(7), 0) // the replica is back with other ranks
		pass(time.Second)
		if s, _ := p.Stats(7); s.Running != 3 {
			t.Errorf("after it was added again: %d running, want 3", s.Running)
		}
	})
}

// requests are those of this router on every rank.
type requests struct{ n *atomic.Int64 }

func (r requests) InFlight(replica.Slot) int { return int(r.n.Load()) }

func TestForeignLoad(t *testing.T) {
	var own atomic.Int64
	e := &engine{status: 200, page: load(4, 0)}
	virtual(t, e, enginestats.Params{Load: requests{&own}}, func(t *testing.T, p *enginestats.Poller) {
		foreign := func() float64 {
			s, _ := p.Stats(0)
			return s.Foreign(time.Now())
		}
		own.Store(4)
		p.Add(0, node(0), 0)
		pass(5 * time.Second)
		if f := foreign(); f != 0 {
			t.Errorf("all requests are ours: %v foreign, want 0", f)
		}
		own.Store(0) // ours ended; the engine's gauges are late
		pass(900 * time.Millisecond)
		if f := foreign(); f != 0 {
			t.Errorf("just after ours ended: %v foreign, want 0", f)
		}
		pass(1200 * time.Millisecond)
		if f := foreign(); f > 3 {
			t.Errorf("2 s after ours ended: %v foreign, want it damped", f)
		}
		pass(20 * time.Second)
		if f := foreign(); math.Abs(f-4) > 0.1 {
			t.Errorf("lasting foreign load: %v, want about 4", f)
		}
		e.set(func(e *engine) { e.page = load(0, 0) })
		pass(5 * time.Second)
		if f := foreign(); f > 0.1 {
			t.Errorf("foreign load gone: %v, want about 0", f)
		}
		e.set(func(e *engine) { e.page = load(8, 8) })
		pass(20 * time.Second)
		e.set(func(e *engine) { e.hangs = true })
		pass(3 * time.Second)
		if f := foreign(); math.Abs(f-16) > 0.2 {
			t.Errorf("3 s without news: %v, want 16", f)
		}
		pass(5500 * time.Millisecond)
		if f := foreign(); f <= 0 || f >= 15 {
			t.Errorf("8.5 s without news: %v, want it fading", f)
		}
		pass(5 * time.Second)
		if f := foreign(); f != 0 {
			t.Errorf("13 s without news: %v, want 0", f)
		}
	})
}

func TestNewsAboutTheEngine(t *testing.T) {
	var mu sync.Mutex
	var told []string
	tell := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, text)
	}
	take := func() []string {
		mu.Lock()
		defer mu.Unlock()
		news := told
		told = nil
		return news
	}
	params := enginestats.Params{Listener: engineNews{add: tell}}
	info := func(size int) string {
		return load(0, 0) + fmt.Sprintf("vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"100\"} 1\n", size)
	}
	e := &engine{status: 200, page: info(16) + "process_start_time_seconds 1000\n"}
	virtual(t, e, params, func(t *testing.T, p *enginestats.Poller) {
		expect := func(want ...string) {
			t.Helper()
			pass(5 * time.Second)
			if got := take(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("news %v, want %v", got, want)
			}
		}
		p.Add(0, node(0), 0)
		expect("a began 1000", "a {BlockSize:16 Blocks:100}")
		expect()
		e.set(func(e *engine) { e.page = info(32) + "process_start_time_seconds 2000\n" })
		expect("a began 2000", "a {BlockSize:32 Blocks:100}")
		// an engine whose clock is 1 h behind: its start is told by this machine's clock
		e.set(func(e *engine) {
			e.page = info(32) + "process_start_time_seconds 3000\n"
			e.date = time.Now().Add(-time.Hour)
		})
		pass(5 * time.Second)
		if news := take(); len(news) != 1 || !strings.HasPrefix(news[0], "a began 660") {
			t.Errorf("an engine with another clock: %v, want it to have begun at about 6600", news)
		}
		// without a start time a counter that falls tells the same
		e.set(func(e *engine) { e.page = info(32) + "vllm:prompt_tokens_total{engine=\"0\"} 500\n" })
		expect()
		e.set(func(e *engine) { e.page = info(32) + "vllm:prompt_tokens_total{engine=\"0\"} 3\n" })
		pass(5 * time.Second)
		if news := take(); len(news) != 1 || !strings.HasPrefix(news[0], "a restarted 9466") {
			t.Errorf("after the counter fell: %v, want one restart now", news)
		}
	})
}

func TestAnEndlessAnswerIsCut(t *testing.T) {
	e := &engine{status: 200, page: strings.Repeat(load(1, 1), 1<<18)}
	virtual(t, e, enginestats.Params{}, func(t *testing.T, p *enginestats.Poller) {
		p.Add(0, node(0), 0)
		pass(time.Second)
		if s, ok := p.Stats(0); ok {
			t.Errorf("an answer above the bound was used: %+v", s)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*enginestats.Config){
		"path": func(c *enginestats.Config) { c.Path = "metrics" }, "interval": func(c *enginestats.Config) { c.Interval = 0 },
		"timeout": func(c *enginestats.Config) { c.Timeout = -1 }, "stale": func(c *enginestats.Config) { c.Stale = 0 },
		"max_bytes": func(c *enginestats.Config) { c.MaxBytes = 0 },
	} {
		c := enginestats.DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want an error about %q", err, want)
		}
	}
}

// engineNews passes the news of engines on as text.
type engineNews struct {
	enginestats.Alone
	add func(string)
}

func (n engineNews) EngineLearned(id replica.ID, l enginestats.Learned) {
	n.add(fmt.Sprintf("%s %+v", id, l))
}

func (n engineNews) EngineStarted(id replica.ID, began time.Time) {
	n.add(fmt.Sprintf("%s began %d", id, began.Unix()))
}

func (n engineNews) EngineRestarted(id replica.ID, noticed time.Time) {
	n.add(fmt.Sprintf("%s restarted %d", id, noticed.Unix()))
}
