package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// obj is a JSON object, as the router's console routes answer with.
type obj = map[string]any

// scene is a router in a state that is hard to come by: the page is the real one, and what it gets
// is made up here. The tests with real routers keep the shape of these answers honest.
type scene struct {
	mu       sync.Mutex
	state    obj       // guarded by mu
	full     obj       // guarded by mu
	hour     []obj     // guarded by mu
	change   func(obj) // guarded by mu: called before each state is shown
	refusal  string    // guarded by mu: what everything is refused with
	watchers map[chan struct{}]bool
}

// refuse refuses everything from now on, and ends the streams that there are; empty stops that.
func (s *scene) refuse(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = why
	for w := range s.watchers {
		close(w)
	}
	clear(s.watchers)
}

func (s *scene) now() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.change != nil {
		s.change(s.state)
	}
	out := maps.Clone(s.state)
	out["at"] = time.Now()
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // the test made it
	}
	return text
}

func (s *scene) answer(w http.ResponseWriter, v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the browser may be gone
}

func (s *scene) watch(w http.ResponseWriter, r *http.Request) {
	cut := make(chan struct{})
	s.mu.Lock()
	s.watchers[cut] = true
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		fmt.Fprintf(w, "data: %s\n\n", s.now())
		_ = http.NewResponseController(w).Flush() // the browser may be gone
		select {
		case <-time.After(200 * time.Millisecond):
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// begin serves the scene and opens it.
func (s *scene) begin(t *testing.T) *browser {
	t.Helper()
	s.watchers = map[chan struct{}]bool{}
	mux := http.NewServeMux()
	mux.Handle("GET /console/", http.StripPrefix("/console/", http.FileServer(http.Dir("../../server/edge/admin/console/page"))))
	mux.HandleFunc("GET /console/api/watch", s.watch)
	mux.HandleFunc("GET /console/api/state", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(s.now()) })
	mux.HandleFunc("GET /console/api/explain", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, []obj{s.full}) })
	mux.HandleFunc("GET /console/api/traces", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, []obj{}) })
	mux.HandleFunc("GET /console/api/history", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, obj{"step": 15, "points": s.hour}) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		why := s.refusal
		s.mu.Unlock()
		if why != "" && strings.Contains(r.URL.Path, "/api/") {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(obj{"error": why}) // the browser may be gone
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'")
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { s.refuse("the test is over") })
	b := openBrowser(t, server.URL+"/")
	b.look(1280, 900, "light")
	b.do("open the console", chromedp.Navigate(server.URL+"/console/"))
	b.until("the page has heard of the router", `!document.getElementById('status').textContent.includes('connecting')`)
	return b
}

// fine is a replica in good health.
func fine(id string, n int) obj {
	return obj{
		"id": id, "url": fmt.Sprintf("http://10.0.0.%d:8000", n), "state": "ready", "since": time.Now().Add(-3 * time.Hour), "version": "0.32.0", "models": []string{"demo-70b"}, "breaker": "closed",
		"ranks": []obj{rank(n)},
	}
}

func rank(n int) obj {
	return obj{
		"rank": 0, "feed": "exact", "lag_ms": .4, "gaps": 0, "resets": 0, "blocks": 21000 + 37*n, "capacity": 24000, "block_size": 16, "in_flight": n % 7, "prefilling": n % 2,
		"queued_ms": n % 5 * 31, "kv_usage": float64(n%10) / 10, "tokens_per_s": 9400 + 31*n, "step_ms": 21.5, "source": "learned", "spread": .04, "prediction_error": 1.02, "busy": float64(n%8) / 9,
	}
}

// calm is a router with replicas, and nothing wrong with it.
func calm(replicas ...obj) obj {
	var seconds []obj
	for back := range 300 {
		seconds = append(seconds, point(time.Now().Unix()-300+int64(back), 1))
	}
	return obj{
		"version": "v0.9.0", "uptime_s": 7300, "policy": obj{"name": "predicted-ttft"}, "index": obj{"blocks": 1_345_200, "max_blocks": 4 << 20, "bytes": 96 << 20},
		"queue": obj{"booked": 182, "waiting": 0}, "parity": []obj{{"model": "demo-70b", "state": "agree"}}, "replicas": replicas, "history": seconds, "recent": []obj{},
		"minute": obj{"requests": 740, "failed": 0, "prompt_tokens": 4_400_000, "cached_tokens": 3_500_000, "p50_ms": 138, "p99_ms": 1840, "seconds": 60},
	}
}

// point is a step of the history of so many seconds.
func point(at int64, step int) obj {
	wave := 1 + math.Sin(float64(at)/300) + math.Sin(float64(at)/7)/5
	failed := 0
	if at%97 < int64(step) {
		failed = step
	}
	return obj{
		"t": at, "requests": step * int(2+8*max(0, wave)), "failed": failed, "prompt_tokens": 6000, "cached_tokens": 3000 + 1300*wave, "p50_ms": 90 + 40*wave, "p99_ms": 700 + 900*wave*wave, "shadow_agreed": -1,
	}
}

func request(i int, id string) obj {
	return obj{
		"id": fmt.Sprintf("%024d", i), "request_id": "r", "at": time.Now(), "model": "demo-70b", "policy": "predicted-ttft", "reason": "cost", "replica": id, "rank": 0, "prompt_tokens": 6400, "overlap_tokens": 250 * i,
		"cached_tokens": 250 * i, "predicted_ms": 140, "ttft_ms": 151, "held_ms": 0, "end": []string{"completed", "completed", "completed", "canceled", "failed", "moved", ""}[i%7],
	}
}

// candidates is a decision among so many replicas.
func candidates(n int) obj {
	var list []obj
	for i := range n {
		list = append(list, obj{
			"replica": fmt.Sprintf("vllm-70b-%d", i), "rank": 0, "feed": 2, "gpu_tokens": i % 5 * 1200, "cpu_tokens": i % 2 * 300, "uncached_tokens": 6400 - i%5*1200, "requests": i % 9,
			"backlog_s": float64(i%4) / 10, "prefill_s": .1 + float64(i%3)/20, "ttft_s": .1 + float64(i%4)/10 + float64(i%3)/20, "cost": 100 + (i+n-3)%n,
		})
	}
	return obj{
		"decision": obj{
			"id": "8c3b6092650dd5056524d45e", "attempt": 0, "request_id": "at-night", "at": time.Now(), "model": "demo-70b", "policy": "predicted-ttft", "reason": "cost", "prompt_tokens": 6400, "margin": .42, "load": .61, "omega": 2,
			"took_ns": 41_000, "held_ns": 120_000_000, "trace_id": strings.Repeat("ab", 16), "chosen": min(3, n-1), "candidates": list, "shadow": obj{"policy": "round-robin", "replica": "vllm-70b-7", "regret_s": .4, "agrees": false},
		},
		"outcome": obj{"end": "completed", "ttft_ns": 180_000_000, "predicted_ttft_ns": 150_000_000, "cached_tokens": 3600, "predicted_cached_tokens": 3600},
	}
}

func TestALargeFleet(t *testing.T) {
	var all []obj
	for i := range 64 {
		all = append(all, fine(fmt.Sprintf("vllm-70b-%d", i), i))
	}
	with := func(i int, more obj) { maps.Copy(all[i], more) }
	with(40, obj{"state": "unhealthy", "error": "probe: dial tcp 10.0.0.40:8000: connect: connection refused", "since": time.Now().Add(-4 * time.Minute)})
	with(41, obj{"state": "draining", "drained": true})
	maps.Copy(all[42]["ranks"].([]obj)[0], obj{"feed": "degraded", "gaps": 3, "feed_error": "events 1201 to 1288 were lost and the replay socket has only 1250 on"})
	with(43, obj{"breaker": "trial"})
	with(44, obj{"state": "starting"})
	s := &scene{state: calm(all...), full: candidates(64)}
	for i := range 25 {
		s.state["recent"] = append(s.state["recent"].([]obj), request(i, fmt.Sprintf("vllm-70b-%d", i)))
	}
	for back := 3600; back > 0; back -= 15 {
		s.hour = append(s.hour, point((time.Now().Unix()-int64(back))/15*15, 15))
	}
	b := s.begin(t)
	b.until("few replicas are listed, the troubled ones first", `(() => { const rows = [...document.querySelectorAll('#replica-table tbody tr:not(.why)')]; return rows.length === 12 && rows[0].innerText.includes('vllm-70b-40'); })()`)
	b.views("many")
	b.do("ask for all", chromedp.Click(chromedp.CSS("#more-replicas button")))
	b.until("all are listed", `document.querySelectorAll('#replica-table tbody tr:not(.why)').length === 64`)
	b.do("ask for few", chromedp.Click(chromedp.CSS("#more-replicas button")))
	b.do("explain", chromedp.Click(chromedp.CSS("#decision-table tbody button")))
	b.until("the first candidates are shown", `document.querySelectorAll('#explain tbody tr').length === 16 && document.querySelectorAll('#explain tr.pick').length === 1`)
	b.do("an hour", chromedp.Click(chromedp.CSS("#range button[value=hour]")))
	b.until("the hour is drawn", `document.querySelector('#figure-rate path.line').getBoundingClientRect().width > 300`)
	b.views("many-explained")
	b.do("all candidates", chromedp.Click(chromedp.CSS("#explain .more button")))
	b.until("all candidates are shown", `document.querySelectorAll('#explain tbody tr').length === 64`)
	b.clean()
}

func TestNamesThatHurt(t *testing.T) {
	long := "org-with-a-long-name/Model-With-A-Very-Long-Name-Instruct-2607-FP8-dynamic-" + strings.Repeat("x", 60)
	var all, recent []obj
	for i, id := range []string{strings.Repeat("very-long-replica-name-", 6), "東京-推論-07", "حاسوب-٣", "<img src=x onerror=alert(1)>", "🚀 gpu 🚀", "a"} {
		r := fine(id, i)
		r["models"] = []string{long, "模型"}
		all = append(all, r)
		d := request(i, id)
		maps.Copy(d, obj{"model": []string{long, "模型"}[i%2], "policy": "prefix-affinity", "reason": "fallback", "prompt_tokens": 131072, "overlap_tokens": 131056, "cached_tokens": 0, "predicted_ms": 123456, "ttft_ms": 98765, "end": "engine refused"})
		recent = append(recent, d)
	}
	maps.Copy(all[1], obj{"state": "unhealthy", "error": strings.Repeat("a long story of what went wrong; ", 60)})
	second := rank(4)
	second["rank"] = 1
	all[5]["ranks"] = []obj{rank(3), second}
	s := &scene{state: calm(all...), full: candidates(2)}
	maps.Copy(s.state, obj{"recent": recent, "parity": []obj{{"model": long, "state": "suspect", "detail": "token 20"}}})
	b := s.begin(t)
	b.until("markup is only text", `document.getElementById('replica-table').innerText.includes('<img src=x') && !document.querySelector('main img')`)
	b.views("names")
	b.clean()
}

func TestOneReplicaAndAClockThatJumps(t *testing.T) {
	r := fine("gpu-a", 3)
	maps.Copy(r, obj{"since": time.Now().Add(2 * time.Hour), "state": "starting"}) // the router's clock was set back since
	s := &scene{state: calm(r), full: candidates(1)}
	later := request(0, "gpu-a")
	maps.Copy(later, obj{"at": time.Now().Add(time.Hour), "cached_tokens": -1, "end": ""})
	s.state["recent"] = []obj{later}
	b := s.begin(t)
	b.until("the replica is listed", `document.getElementById('replica-table').innerText.includes('starting for 0 s')`)
	for _, wrong := range []string{"NaN", "Invalid", "undefined", "-3", "null"} {
		if text := eval[string](b, "document.body.innerText"); strings.Contains(text, wrong) {
			t.Errorf("the page says %q:\n%s", wrong, text)
		}
	}
	b.views("one")
	b.clean()
}

func TestWhatIsSelectedStaysWhileThePageLives(t *testing.T) {
	s := &scene{state: calm(fine("gpu-a", 1), fine("gpu-b", 2)), full: candidates(4)}
	n := 0
	s.change = func(state obj) {
		n++
		replicas := state["replicas"].([]obj)
		replicas[0]["ranks"].([]obj)[0]["in_flight"] = n
		replicas[1]["ranks"].([]obj)[0]["prefilling"] = n % 2
		state["queue"] = obj{"booked": 10000 * n, "waiting": n % 2}
		d := request(n%7, "gpu-a")
		d["id"] = fmt.Sprint(n)
		recent := append([]obj{d}, state["recent"].([]obj)...)
		state["recent"] = recent[:min(25, len(recent))]
	}
	b := s.begin(t)
	b.until("the list is full", `document.querySelectorAll('#decision-table tbody tr').length === 25`)
	b.do("note what jumps", chromedp.Evaluate[chromedp.Void](`window.jumped = []; new PerformanceObserver((l) => { for (const e of l.getEntries()) window.jumped.push(e.value.toFixed(4) + ' ' + e.sources.map((s) => s.node?.outerHTML?.slice(0, 80)).join(' | ')); }).observe({ type: 'layout-shift' })`))
	b.do("select a name", chromedp.Evaluate[chromedp.Void](`getSelection().selectAllChildren(document.querySelector('#replica-table .name'))`))
	was := eval[int](b, `Number(document.querySelector('#replica-table tbody .n').firstChild.data)`)
	b.until("the page lives on", fmt.Sprintf(`Number(document.querySelector('#replica-table tbody .n').firstChild.data) > %d`, was+10))
	if got := eval[string](b, "getSelection().toString()"); got != "gpu-a" {
		t.Errorf("the selection is %q, it was gpu-a", got)
	}
	// A new line in the list of decisions moves the others: that is what it is for.
	for _, j := range eval[[]string](b, `window.jumped.filter((j) => !j.includes('tr class="link') && parseFloat(j) > 0.002)`) {
		t.Errorf("something jumped while the page lived: %s", j)
	}
	b.clean()
}

func TestARouterThatRefusesForAWhile(t *testing.T) {
	s := &scene{state: calm(fine("gpu-a", 1))}
	b := s.begin(t)
	b.until("the replica is listed", `document.getElementById('replica-table').innerText.includes('gpu-a')`)
	b.expectFaults()
	s.refuse("too many consoles are connected to this router")
	b.until("it says why", `document.getElementById('status').textContent.includes('too many people')`)
	b.shot("refused-wide-light")
	s.refuse("")
	b.until("it is back by itself", `document.getElementById('status').textContent.includes('predicted-ttft') && !document.body.classList.contains('gone')`)
}
