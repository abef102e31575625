package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// obj is a JSON object, as the router's RPCs answer with over REST.
type obj = map[string]any

// scene is a router in a state that is hard to come by: the page is the real one, and what it gets
// is made up here. The tests with real routers keep the shape of these answers honest.
type scene struct {
	mu       sync.Mutex
	status   obj    // guarded by mu
	replicas []obj  // guarded by mu
	loads    []obj  // guarded by mu
	recent   []obj  // guarded by mu
	steps    []obj  // guarded by mu
	hour     []obj  // guarded by mu
	routers  []obj  // guarded by mu
	programs obj    // guarded by mu
	splits   obj    // guarded by mu
	full     obj    // guarded by mu
	change   func() // guarded by mu: called before each look
	refusal  string // guarded by mu: what everything is refused with
}

// refuse refuses everything from now on; empty stops that.
func (s *scene) refuse(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = why
}

// answer is what an RPC's path is answered with; nil when there is no such RPC.
func (s *scene) answer(r *http.Request) any {
	switch path := strings.TrimPrefix(r.URL.Path, "/kvpilot/v1/"); {
	case path == "status":
		if s.change != nil {
			s.change()
		}
		out := maps.Clone(s.status)
		out["time"] = time.Now()
		return out
	case path == "replicas":
		return obj{"replicas": s.replicas}
	case path == "routers":
		return obj{"routers": append([]obj{}, s.routers...)}
	case path == "splits":
		out := obj{"splits": []obj{}}
		maps.Copy(out, s.splits)
		return out
	case path == "programs":
		out := obj{"programs": []obj{}, "pressure": []obj{}}
		maps.Copy(out, s.programs)
		return out
	case path == "loads":
		return obj{"ranks": s.loads}
	case path == "decisions":
		return obj{"decisions": s.recent}
	case strings.Contains(path, "decisions"):
		return obj{"decisions": []obj{s.full}}
	case path == "traces":
		return obj{"traces": []obj{}}
	case path == "history" && r.URL.Query().Get("step") == "15s":
		return obj{"steps": s.hour}
	case path == "history":
		return obj{"steps": s.steps}
	}
	return nil
}

func (s *scene) serveRPC(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	out := s.answer(r)
	switch {
	case s.refusal != "":
		w.WriteHeader(http.StatusServiceUnavailable)
		out = obj{"error": obj{"message": s.refusal}}
	case out == nil:
		w.WriteHeader(http.StatusNotFound)
		out = obj{"error": obj{"message": "there is no such RPC"}}
	}
	_ = json.NewEncoder(w).Encode(out) // the browser may be gone
}

// begin serves the scene and opens it.
func (s *scene) begin(t *testing.T) *browser {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /console/", http.StripPrefix("/console/", http.FileServer(http.Dir("../../server/edge/admin/console/page"))))
	mux.HandleFunc("GET /kvpilot/v1/", s.serveRPC)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'")
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b := openBrowser(t, server.URL+"/")
	b.look(1280, 900, "light")
	b.do("open the console", chromedp.Navigate(server.URL+"/console/"))
	b.until("the page has heard of the router", `!document.getElementById('status').textContent.includes('connecting')`)
	return b
}

// fine is a replica in good health.
func fine(id string, n int) obj {
	return obj{
		"replica_id": id, "url": fmt.Sprintf("http://10.0.0.%d:8000", n), "state": "REPLICA_STATE_READY", "since": time.Now().Add(-3 * time.Hour), "version": "0.32.0",
		"models": []obj{{"id": "demo-70b"}}, "breaker": "BREAKER_STATE_CLOSED", "drained": false, "last_error": "", "blocks": 24000, "ranks": []obj{rank(n)},
	}
}

func rank(n int) obj {
	return obj{"rank": 0, "feed": "FEED_STATE_EXACT", "feed_error": "", "feed_lag": "0.0004s", "gaps": "0", "resets": "0", "known_blocks": 21000 + 37*n}
}

// loadOf is a rank's load.
func loadOf(id string, rank, n int) obj {
	return obj{
		"replica_id": id, "rank": rank, "requests": n % 7, "waiting": n % 2, "backlog": span(float64(n % 5 * 31)), "kv_usage": float64(n%10) / 10, "engine_age": "0.4s",
		"speed": obj{"tokens_per_second": 9400 + 31*n, "step": "0.0215s", "source": "SPEED_SOURCE_LEARNED", "spread": .04, "samples": 40, "prediction_ratio": 1.02, "busy": float64(n%8) / 9},
	}
}

// calm is a router with replicas, and nothing wrong with it.
func calm(replicas ...obj) *scene {
	s := &scene{replicas: replicas, recent: []obj{}, full: candidates(4)}
	for back := range 300 {
		s.steps = append(s.steps, step(time.Now().Unix()-300+int64(back), 1))
	}
	for i, r := range replicas {
		for k := range r["ranks"].([]obj) {
			s.loads = append(s.loads, loadOf(r["replica_id"].(string), k, i+1+k))
		}
	}
	s.status = obj{
		"version": "v0.9.0", "uptime": "7300.25s", "not_ready": "", "policy": "predicted-ttft", "shadow_policy": "", "booked": 182, "held": 0,
		"index":  obj{"blocks": "1345200", "max_blocks": "4194304", "bytes": "100663296", "cut": false},
		"parity": []obj{{"model": "demo-70b", "state": "PARITY_STATE_PROVEN", "detail": ""}},
		"minute": obj{"time": time.Now(), "requests": 740, "failed": 0, "attempts": 765, "retries": 25, "hand_overs": 12, "unserved": obj{}, "prompt_tokens": "4400000", "cached_tokens": "3500000", "counted_tokens": "0", "ttft_p50": span(138), "ttft_p99": span(1840), "counted": "60s"},
	}
	return s
}

// step is a step of the history of so many seconds.
func step(at int64, seconds int) obj {
	wave := 1 + math.Sin(float64(at)/300) + math.Sin(float64(at)/7)/5
	failed := 0
	if at%97 < int64(seconds) {
		failed = seconds
	}
	return obj{
		"time": time.Unix(at, 0).UTC(), "counted": span(1000 * float64(seconds)), "requests": seconds * int(2+8*max(0, wave)), "failed": failed, "unserved": obj{}, "prompt_tokens": "6000",
		"cached_tokens": fmt.Sprint(int(3000 + 1300*wave)), "ttft_p50": span(90 + 40*wave), "ttft_p99": span(700 + 900*wave*wave), "shadow_regret": span(0),
		"tpot_p50": span(21 + 3*wave), "tpot_p99": span(34 + 9*wave), "held": failed, "held_max": span(120 * max(0, wave-1)),
	}
}

func request(i int, id string) obj {
	d := obj{
		"decision_id": fmt.Sprintf("%024d", i), "request_id": "r", "time": time.Now(), "model": "demo-70b", "policy": "predicted-ttft", "reason": "CHOICE_REASON_COST", "replica_id": id, "rank": 0, "prompt_tokens": 6400,
		"held": "0s", "dry_run": false, "candidates": []obj{{"replica_id": id, "rank": 0, "overlap": overlap(250*i, 0), "ttft": span(140)}},
	}
	if end := []string{"COMPLETED", "COMPLETED", "COMPLETED", "CANCELED", "FAILED", "MOVED", ""}[i%7]; end != "" {
		d["outcome"] = obj{"end": "END_" + end, "ttft": "0.151s", "cached_tokens": 250 * i}
	}
	return d
}

// span is so many milliseconds as a duration of the contract.
func span(ms float64) string { return strconv.FormatFloat(ms/1000, 'f', -1, 64) + "s" }

func overlap(gpu, cpu int) obj { return obj{"gpu_tokens": gpu, "cpu_tokens": cpu, "disk_tokens": 0} }

// routerOf is a router of the fleet.
func routerOf(i int, more obj) obj {
	r := obj{
		"router_id": fmt.Sprintf("%08x", i), "name": fmt.Sprintf("kvpilot-%d", i), "self": false, "address": fmt.Sprintf("10.0.1.%d:7947", i), "state": "ROUTER_STATE_ALIVE", "connected": true,
		"decides": []string{}, "report": obj{"version": "v0.9.0", "not_ready": "", "able": true, "requests": 60 + i, "held": 0},
	}
	maps.Copy(r, more)
	return r
}

// candidates is a decision among so many replicas.
func candidates(n int) obj {
	var list []obj
	for i := range n {
		list = append(list, obj{
			"replica_id": fmt.Sprintf("vllm-70b-%d", i), "rank": 0, "veto": "VETO_UNSPECIFIED", "feed": "FEED_STATE_EXACT", "overlap": overlap(i%5*1200, i%2*300), "uncached_tokens": 6400 - i%5*1200, "requests": i % 9,
			"backlog": span(float64(i%4) * 100), "prefill": span(100 + float64(i%3)*50), "ttft": span(100 + float64(i%4)*100 + float64(i%3)*50), "cost": 100 + (i+n-3)%n,
		})
	}
	return obj{
		"decision_id": "8c3b6092650dd5056524d45e", "attempt": 0, "request_id": "at-night", "time": time.Now(), "model": "demo-70b", "policy": "predicted-ttft", "reason": "CHOICE_REASON_COST", "prompt_tokens": 6400, "margin": 420, "load": .61, "omega": 2,
		"took": "0.000041s", "held": "0.120s", "trace_id": strings.Repeat("ab", 16), "replica_id": fmt.Sprintf("vllm-70b-%d", min(3, n-1)), "rank": 0, "candidates": list,
		"shadow":  obj{"policy": "round-robin", "replica_id": "vllm-70b-7", "regret": span(400), "agrees": false},
		"outcome": obj{"end": "END_COMPLETED", "ttft": "0.180s", "predicted_ttft": "0.150s", "cached_tokens": 3600, "predicted_cached_tokens": 3600},
	}
}

func TestALargeFleet(t *testing.T) {
	var all []obj
	for i := range 64 {
		all = append(all, fine(fmt.Sprintf("vllm-70b-%d", i), i))
	}
	with := func(i int, more obj) { maps.Copy(all[i], more) }
	with(40, obj{"state": "REPLICA_STATE_UNHEALTHY", "last_error": "probe: dial tcp 10.0.0.40:8000: connect: connection refused", "since": time.Now().Add(-4 * time.Minute)})
	with(41, obj{"state": "REPLICA_STATE_DRAINING", "drained": true, "drain": obj{"by": "ops", "reason": "a new driver", "in_flight": 3}})
	maps.Copy(all[42]["ranks"].([]obj)[0], obj{"feed": "FEED_STATE_DEGRADED", "gaps": "3", "feed_error": "events 1201 to 1288 were lost and the replay socket has only 1250 on"})
	with(43, obj{"breaker": "BREAKER_STATE_TRIAL"})
	with(44, obj{"state": "REPLICA_STATE_STARTING"})
	s := calm(all...)
	s.full = candidates(64)
	for i := range 25 {
		s.recent = append(s.recent, request(i, fmt.Sprintf("vllm-70b-%d", i)))
	}
	for back := 3600; back > 0; back -= 15 {
		s.hour = append(s.hour, step((time.Now().Unix()-int64(back))/15*15, 15))
	}
	s.routers = []obj{routerOf(0, obj{"self": true, "decides": []string{"demo-70b"}}), routerOf(1, obj{"report": nil}), routerOf(2, obj{"state": "ROUTER_STATE_DEAD"})}
	var programs []obj
	for i := range 12 {
		p := obj{"program_id": fmt.Sprintf("%016x", i), "model": "demo-70b", "tenant": "team", "state": "PROGRAM_STATE_GAP", "replica_id": "vllm-70b-1", "rank": 0, "resident_tokens": fmt.Sprint(1000 * i), "needed_tokens": "20000", "calls": "7", "prompt_tokens": "100", "cached_tokens": "90"}
		if i == 3 {
			p["state"], p["wait"], p["replica_id"] = "PROGRAM_STATE_WAITING", "41s", ""
		}
		programs = append(programs, p)
	}
	s.programs = obj{"programs": programs, "pressure": []obj{{"model": "demo-70b", "placed": 31, "paused": 2, "waiting": 11, "replicas": 64, "replicas_needed": 91}}}
	s.splits = obj{"splits": []obj{{"model": "demo-70b", "sides": []obj{
		{"side": "stable", "weight": 95, "baseline": true, "ready": true, "requests": 950, "failed": 2, "ttft_p50": "0.210s", "ttft_p99": "1.900s", "answer_p50": "4s", "answer_p99": "19s"},
		{"side": "canary", "weight": 5, "ready": true, "requests": 50, "failed": 30, "stepped_back_since": time.Now(), "stepped_back_by": "rule", "stepped_back_why": "30 of 50 requests failed, 2 of 950 of the baseline's"},
	}}}}
	b := s.begin(t)
	b.until("the sides are compared, and the reason of the step back is named", `(() => { const rows = [...document.querySelectorAll('#split-table tbody tr')]; return rows.length === 2 && rows[0].innerText.includes('baseline') && rows[0].innerText.includes('210') && rows[1].innerText.includes('stepped back') && rows[1].innerText.includes('60 %') && document.getElementById('split-notes').innerText.includes('30 of 50 requests failed'); })()`)
	b.until("the program that waits is the first of eight", `(() => { const rows = [...document.querySelectorAll('#program-table tbody tr')]; return rows.length === 8 && rows[0].innerText.includes('waiting') && rows[0].innerText.includes('41') && rows[1].innerText.includes('11'); })()`)
	b.until("the pressure is named", `document.getElementById('pressure').innerText.includes('memory for 31 programs, 44 want it') && document.getElementById('pressure').innerText.includes('91 replicas would do') && document.getElementById('more-programs').innerText.includes('4 more')`)
	b.until("the routers are listed, each with its state", `[...document.querySelectorAll('#router-table tbody tr')].map((r) => r.cells[1].innerText.trim()).join() === 'alive,silent,dead'`)
	b.until("the page says what is of this router alone", `document.querySelectorAll('.of-one:not([hidden])').length === 2 && document.getElementById('fleet').innerText.includes('history and traces are of this router alone')`)
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
	b.do("all candidates", chromedp.Evaluate[chromedp.Void](`document.querySelector('#explain .more button').click()`))
	b.until("all candidates are shown", `document.querySelectorAll('#explain tbody tr').length === 64`)
	b.clean()
}

func TestNamesThatHurt(t *testing.T) {
	long := "org-with-a-long-name/Model-With-A-Very-Long-Name-Instruct-2607-FP8-dynamic-" + strings.Repeat("x", 60)
	var all, recent []obj
	for i, id := range []string{strings.Repeat("very-long-replica-name-", 6), "東京-推論-07", "حاسوب-٣", "<img src=x onerror=alert(1)>", "🚀 gpu 🚀", "a"} {
		r := fine(id, i)
		r["models"] = []obj{{"id": long}, {"id": "模型"}}
		all = append(all, r)
		d := request(i, id)
		maps.Copy(d, obj{"model": []string{long, "模型"}[i%2], "policy": "prefix-affinity", "reason": "CHOICE_REASON_NO_KEY", "prompt_tokens": 131072,
			"candidates": []obj{{"replica_id": id, "rank": 0, "overlap": overlap(131056, 0), "ttft": span(123456)}}, "outcome": obj{"end": "END_ENGINE_REFUSED", "ttft": "98.765s", "cached_tokens": 0}})
		recent = append(recent, d)
	}
	maps.Copy(all[1], obj{"state": "REPLICA_STATE_UNHEALTHY", "last_error": strings.Repeat("a long story of what went wrong; ", 60)})
	second := rank(4)
	second["rank"] = 1
	all[5]["ranks"] = []obj{rank(3), second}
	s := calm(all...)
	s.full, s.recent = candidates(2), recent
	s.status["parity"] = []obj{{"model": long, "state": "PARITY_STATE_SUSPECT", "detail": "token 20"}}
	b := s.begin(t)
	b.until("markup is only text", `document.getElementById('replica-table').innerText.includes('<img src=x') && !document.querySelector('main img')`)
	b.until("the suspect model is named", `[...document.querySelectorAll('.tile.bad')].some((t) => t.innerText.toLowerCase().includes('suspect'))`)
	b.views("names")
	b.clean()
}

func TestOneReplicaAndAClockThatJumps(t *testing.T) {
	r := fine("gpu-a", 3)
	maps.Copy(r, obj{"since": time.Now().Add(2 * time.Hour), "state": "REPLICA_STATE_STARTING"}) // the router's clock was set back since
	s := calm(r)
	s.full = candidates(1)
	later := request(0, "gpu-a")
	later["time"] = time.Now().Add(time.Hour)
	delete(later, "outcome")
	s.recent = []obj{later}
	b := s.begin(t)
	b.until("the replica is listed", `document.getElementById('replica-table').innerText.includes('starting for 0 s')`)
	if n := eval[int](b, `document.querySelectorAll('.of-one:not([hidden])').length`); n != 0 {
		t.Errorf("a router without others has %d notes on what is of it alone", n)
	}
	for _, wrong := range []string{"NaN", "Invalid", "undefined", "-3", "null"} {
		if text := eval[string](b, "document.body.innerText"); strings.Contains(text, wrong) {
			t.Errorf("the page says %q:\n%s", wrong, text)
		}
	}
	b.views("one")
	b.clean()
}

func TestWhatIsSelectedStaysWhileThePageLives(t *testing.T) {
	s := calm(fine("gpu-a", 1), fine("gpu-b", 2))
	n := 0
	s.change = func() {
		n++
		s.loads[0]["requests"], s.loads[1]["waiting"] = n, n%2
		s.status["booked"], s.status["held"] = 10000*n, n%2
		d := request(n%7, "gpu-a")
		d["decision_id"] = fmt.Sprint(n)
		s.recent = append([]obj{d}, s.recent...)
		s.recent = s.recent[:min(25, len(s.recent))]
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
	s := calm(fine("gpu-a", 1))
	b := s.begin(t)
	b.until("the replica is listed", `document.getElementById('replica-table').innerText.includes('gpu-a')`)
	b.expectFaults()
	s.refuse("too many consoles are connected to this router")
	b.until("it says why", `document.getElementById('status').textContent.includes('too many consoles')`)
	b.shot("refused-wide-light")
	s.refuse("")
	b.until("it is back by itself", `document.getElementById('status').textContent.includes('predicted-ttft') && !document.body.classList.contains('gone')`)
}

// Attempts that were retried and bookings that another router took are no failed requests.
func TestWhatWasTriedAgainHasNotFailed(t *testing.T) {
	s := calm(fine("gpu-a", 1))
	s.set("minute", obj{"time": time.Now(), "requests": 175, "failed": 0, "attempts": 200, "retries": 25, "hand_overs": 12, "unserved": obj{}, "prompt_tokens": "0", "cached_tokens": "0", "counted_tokens": "0", "ttft_p50": span(0), "ttft_p99": span(0), "counted": "60s"})
	b := s.begin(t)
	tile := func(name string) string {
		return `[...document.querySelectorAll('#tiles .tile')].find((t) => t.innerText.includes('` + name + `'))`
	}
	b.until("no request failed", tile("Failed")+`.querySelector('b').innerText === '0' && !`+tile("Failed")+`.classList.contains('bad')`)
	b.until("retries and hand-overs are told apart", tile("Requests")+`.innerText.includes('25 retried, 12 handed over')`)
	b.shot("retried-wide-light")
	b.clean()
}

// Ranks that drain while the others of their replica take requests are named, with who drains them and what is left.
func TestRanksThatDrainAreNamed(t *testing.T) {
	r := fine("gpu-a", 1)
	r["ranks"] = []obj{rank(1), rank(2), rank(3)}
	for i, k := range r["ranks"].([]obj) {
		k["rank"] = i
	}
	r["drain"] = obj{"by": "alice", "reason": "a bad link", "in_flight": 3, "ranks": []int{0, 2}}
	b := calm(r, fine("gpu-b", 4)).begin(t)
	const rows = `[...document.querySelectorAll('#replica-table tbody tr:not(.why)')]`
	b.until("the ranks are named", `document.getElementById('replica-table').innerText.includes('ranks 0, 2 drained by alice (a bad link), 3 requests left')`)
	b.until("their rows say so", rows+`.map((r) => r.innerText.includes('draining')).join() === 'true,false,true,false'`)
	b.until("the replica is ready", rows+`[0].innerText.includes('ready')`)
	b.shot("ranks-wide-light")
	b.clean()
}

// The header says that requests are refused, and which setting limits; the chart shows those that failed above all of them.
func TestAnOverloadedRouter(t *testing.T) {
	s := calm(fine("gpu-a", 1))
	for i := range s.steps {
		if i > 100 {
			s.steps[i]["failed"] = 0
			s.steps[i]["requests"] = 0
			s.steps[i]["unserved"] = obj{"OVERLOADED": 20}
		}
	}
	s.set("minute", obj{"time": time.Now(), "requests": 40, "failed": 0, "attempts": 40, "retries": 0, "hand_overs": 0, "unserved": obj{"OVERLOADED": 1200, "NO_REPLICA": 3}, "prompt_tokens": "0", "cached_tokens": "0", "counted_tokens": "0", "ttft_p50": span(0), "ttft_p99": span(0), "counted": "60s"})
	b := s.begin(t)
	b.until("the header says what limits", `['refused in the last minute', 'the queue is full', 'chooser.queue'].every((w) => document.getElementById('status').textContent.includes(w)) && document.getElementById('status').className === 'mind'`)
	b.until("failed lies above all, and both can be seen", `(() => { const lines = [...document.querySelectorAll('#figure-rate path.line')]; return lines.length > 1 && lines.at(-1).classList.contains('failed') && getComputedStyle(lines.at(-1)).strokeDasharray !== 'none'; })()`)
	b.views("overload")
	b.clean()
}

// set sets a part of the status.
func (s *scene) set(name string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[name] = value
}
