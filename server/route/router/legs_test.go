package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// leg is a request as an engine of a split pool sees it.
type leg struct {
	id     string
	Prompt []int  `json:"prompt"`
	Max    int    `json:"max_tokens"`
	Stream bool   `json:"stream"`
	Stop   []byte `json:"-"`
	Params *struct {
		Decode  bool   `json:"do_remote_decode"`
		Prefill bool   `json:"do_remote_prefill"`
		First   int    `json:"first"`
		Request string `json:"remote_request_id"`

		Transfer  string `json:"transfer_id"`
		Bootstrap string `json:"remote_bootstrap_addr"`
		Engine    string `json:"remote_engine_id"`
	} `json:"kv_transfer_params"`
}

// part names what the request asks of an engine.
func (l *leg) part() string {
	switch {
	case l.Params == nil:
		return "whole"
	case l.Params.Decode:
		return "prefill"
	}
	return "decode"
}

// pair is a router before one engine that prefills (r0), one that decodes (r1) and one without a connector (r2), which is busy.
type pair struct {
	*fleet
	reader *metric.ManualReader
	end    func()

	mu   sync.Mutex
	legs map[int][]leg // guarded by mu: what each engine got
}

const longPrompt = 6000

// newPair starts the fleet with NIXL. A nil step is that of a working engine.
func newPair(t *testing.T, prefill, decode http.HandlerFunc) *pair {
	t.Helper()
	return newPairOf(t, "nixl", prefill, decode)
}

func newPairOf(t *testing.T, connector string, prefill, decode http.HandlerFunc) *pair {
	t.Helper()
	return newPairAt(t, connector, "", prefill, decode)
}

// newPairAt is newPairOf with the address of r0's bootstrap server; empty for none.
func newPairAt(t *testing.T, connector, bootstrap string, prefill, decode http.HandlerFunc) *pair {
	t.Helper()
	p := &pair{reader: metric.NewManualReader(), legs: map[int][]leg{}}
	p.fleet = start(t, 3, func(params *router.Params, _ *chooser.Config, rc *registry.Config) {
		params.Scope = scope.Measured(metric.NewMeterProvider(metric.WithReader(p.reader)))
		for i, role := range []string{"prefill", "decode"} {
			rc.Replicas[i].Labels = map[string]string{replica.LabelConnector: connector, replica.LabelRole: role}
			if bootstrap != "" {
				rc.Replicas[i].Labels[replica.LabelBootstrap] = bootstrap
			}
		}
	})
	p.router.SetLegs(20*time.Second, 50*time.Millisecond)
	for i, step := range []http.HandlerFunc{prefill, decode, nil} {
		p.engines[i].does(p.noting(i, step))
	}
	var busy []*chooser.Choice
	for i := range 60 {
		req := &chooser.Request{
			Request: decision.Request{ID: "busy-" + strconv.Itoa(i), Model: "m"}, Pool: chooser.Pool{Replicas: p.params.Registry.Snapshot().Replicas},
			Prompt: chooser.Prompt{PromptTokens: 16}, Terms: chooser.Terms{NoQueue: true},
			Limits: chooser.Limits{Options: chooser.Options{Pinned: replica.ID(fmt.Sprintf("r%d", 1+i%2)), PinnedRank: -1}}, Reply: chooser.Reply{Quiet: true},
		}
		c, err := p.chooser.Choose(t.Context(), req)
		must(t, err)
		c.FirstToken()
		busy = append(busy, c)
	}
	p.end = func() {
		for _, c := range busy {
			c.Release(chooser.ResultOf(decision.EndCanceled))
		}
		p.eventually("nothing is booked", func() bool { return p.book.Live() == 0 })
	}
	return p
}

// noting keeps what engine i gets, and then takes the step, or, of a part that the step is not for, answers as a working engine.
func (p *pair) noting(i int, step http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		l := leg{id: r.Header.Get("X-Request-Id")}
		if err := json.Unmarshal(body, &l); err != nil {
			p.t.Errorf("%v in %s", err, body)
		}
		p.mu.Lock()
		p.legs[i] = append(p.legs[i], l)
		p.mu.Unlock()
		if step != nil && l.part() != "whole" {
			step(w, r)
			return
		}
		works(p.t, w, &l)
	}
}

// works answers as a working engine does, and checks what it gets.
func works(t testing.TB, w http.ResponseWriter, l *leg) {
	switch l.part() {
	case "prefill":
		if l.Max != 1 || l.Stream || l.Params.Prefill {
			t.Errorf("the leg that prefills is %+v", l)
		}
		text(200, prefilled(l, len(l.Prompt)))(w, nil)
	default:
		if l.Params != nil && l.Params.Bootstrap == "" && l.Params.First != l.Prompt[0] {
			t.Errorf("prompt %d gets the cache of %d", l.Prompt[0], l.Params.First)
		}
		if !l.Stream {
			text(200, `{"id":"x","choices":[{"index":0,"text":"`+l.part()+`","finish_reason":"stop"}],"usage":{"prompt_tokens":6000,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}`)(w, nil)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, said(l.part())+"data: [DONE]\n\n")
	}
}

func prefilled(l *leg, tokens int) string {
	return fmt.Sprintf(`{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},`+
		`"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"p","remote_request_id":"cmpl-%s-0-1","first":%d}}`, tokens, l.id, l.Prompt[0])
}

func said(word string) string {
	return `data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"` + word + `","finish_reason":"stop"}]}` + "\n\n"
}

// completion asks for a long prompt of ids that begin with first.
func completion(first int, more string) *intake.Call {
	ids := make([]string, longPrompt)
	for i := range ids {
		ids[i] = strconv.Itoa(i + 1)
	}
	ids[0] = strconv.Itoa(first)
	return &intake.Call{
		Route: openai.RouteCompletions, Method: http.MethodPost, Path: "/v1/completions", Header: http.Header{"Content-Type": {"application/json"}},
		Body: []byte(`{"model":"m","max_tokens":50,"prompt":[` + strings.Join(ids, ",") + `]` + more + `}`), RequestID: "req-1",
	}
}

// parts lists what each engine was asked for.
func (p *pair) parts() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for i := range p.engines {
		var list []string
		for _, l := range p.legs[i] {
			list = append(list, l.part())
		}
		all = append(all, strings.Join(list, "+"))
	}
	return strings.Join(all, " ")
}

// counted lists the series of a counter that are not zero.
func (p *pair) counted(name string) string {
	p.t.Helper()
	var all metricdata.ResourceMetrics
	must(p.t, p.reader.Collect(context.Background(), &all))
	var list []string
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, point := range sum.DataPoints {
					label, _ := point.Attributes.Value("result")
					if point.Value != 0 {
						list = append(list, fmt.Sprintf("%d %s", point.Value, label.AsString()))
					}
				}
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func TestSplitRequestPrefillsOnOneReplicaAndAnswersFromAnother(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			p := newPair(t, nil, nil)
			to := &client{}
			must(t, p.router.Serve(t.Context(), completion(7, fmt.Sprintf(`,"stream":%t,"stop":["x"],"min_tokens":2`, stream)), to))
			if !strings.Contains(to.body.String(), `"decode"`) || p.parts() != "prefill decode " {
				t.Errorf("the engines were asked for %q, the client got %s", p.parts(), &to.body)
			}
			if got := to.header.Get("X-Kvpilot-Prefill"); got != "r0" || to.header.Get(router.HeaderReplica) != "r1" || to.header.Get("X-Request-Id") != "req-1" {
				t.Errorf("headers %v", to.header)
			}
			a, b := p.legs[0][0].id, p.legs[1][0].id
			if a == b || a == "req-1" || b == "req-1" {
				t.Errorf("the legs have the ids %q and %q", a, b)
			}
			if p.counted("kvpilot.router.prefills") != "1 done" || p.counted("kvpilot.router.transfers") != "1 read" {
				t.Errorf("prefills %s, transfers %s", p.counted("kvpilot.router.prefills"), p.counted("kvpilot.router.transfers"))
			}
			p.end()
			if ends := p.ends(); !slices.Contains(ends, decision.EndCompleted) {
				t.Errorf("ends %v", ends)
			}
		})
	}
}

// Whatever becomes of the leg that prefills, the client gets the answer of a replica that serves the request whole, and nothing stays booked.
func TestRequestIsServedWholeWhenNoPrefillComes(t *testing.T) {
	t.Parallel()
	noCache := text(200, `{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":6000},"kv_transfer_params":null}`)
	for name, tt := range map[string]struct {
		step   http.HandlerFunc
		result string
	}{
		"400":     {text(400, `{"error":{"message":"no"}}`), "refused"},
		"429":     {text(429, `{}`, "Retry-After", "1"), "refused"},
		"503":     {text(503, `{}`), "refused"},
		"500":     {text(500, `{}`), "failed"},
		"cut":     {cut, "unreachable"},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) { hijacked(w, "nonsense\r\n\r\n") }, "failed"},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
			hijacked(w, "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"kv_transfer_params\":{")
		}, "failed"},
		"no cache":          {noCache, "no_cache"},
		"no JSON":           {text(200, `<html>`), "no_cache"},
		"other tokens":      {text(200, prefilled(&leg{Prompt: []int{7}}, 5999)), "mismatch"},
		"another connector": {text(200, strings.Replace(prefilled(&leg{Prompt: []int{7}}, 6000), `"first"`, `"transfer_mode":"push","first"`, 1)), "no_cache"},
		"no answer":         {silent, "late"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, tt.step, nil)
			if name == "no answer" {
				p.router.SetLegs(-time.Hour, time.Millisecond)
			}
			to := &client{}
			must(t, p.router.Serve(t.Context(), completion(7, `,"stream":true`), to))
			if !strings.Contains(to.body.String(), `"whole"`) || to.status != 200 {
				t.Errorf("the client got %d %s", to.status, &to.body)
			}
			if parts := p.parts(); strings.Contains(parts, "decode") || strings.Count(parts, "whole") != 1 {
				t.Errorf("the engines were asked for %q", parts)
			}
			if got := p.counted("kvpilot.router.prefills"); got != "1 "+tt.result {
				t.Errorf("counted %s, want %s", got, tt.result)
			}
			p.end()
		})
	}
}

// The same for the leg that decodes, until its first token.
func TestRequestIsServedWholeWhenTheTransferFails(t *testing.T) {
	t.Parallel()
	failed := `data: {"error":{"message":"KV load failed","type":"InternalServerError","param":null,"code":500}}` + "\n\ndata: [DONE]\n\n"
	for name, tt := range map[string]struct {
		step http.HandlerFunc
		call string
	}{
		"an error in the stream": {streaming([]string{failed}, nil), `,"stream":true`},
		"in two pieces":          {streaming([]string{failed[:30], failed[30:]}, nil), `,"stream":true`},
		"500":                    {text(500, `{"error":{"message":"KV load failed"}}`), ``},
		"400":                    {text(400, `{"error":{"message":"no"}}`), ``},
		"503":                    {text(503, `{}`), `,"stream":true`},
		"cut":                    {cut, ``},
		"cut after the head":     {streaming(nil, cut), `,"stream":true`},
		"an end without tokens":  {streaming([]string{"data: [DONE]\n\n"}, nil), `,"stream":true`},
		"no first token":         {streaming(nil, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), `,"stream":true`},
		"no first byte":          {silent, ``},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil, tt.step)
			if strings.HasPrefix(name, "no first") {
				p.router.SetLegs(500*time.Millisecond, time.Millisecond)
			}
			to := &client{}
			must(t, p.router.Serve(t.Context(), completion(7, tt.call), to))
			if !strings.Contains(to.body.String(), `"whole"`) || strings.Contains(to.body.String(), "error") || to.status != 200 {
				t.Errorf("the client got %d %s", to.status, &to.body)
			}
			if parts := p.parts(); !strings.HasPrefix(parts, "prefill decode") || strings.Count(parts, "whole") != 1 {
				t.Errorf("the engines were asked for %q", parts)
			}
			if got := p.counted("kvpilot.router.transfers"); got != "1 lost" {
				t.Errorf("counted %s", got)
			}
			p.end()
		})
	}
}

// An error about the request itself reaches the client in the engine's words.
func TestErrorOfBothLegsIsTheRequests(t *testing.T) {
	p := newPair(t, nil, nil)
	for _, e := range p.engines {
		e.does(text(400, `{"error":{"message":"bad temperature","type":"x"}}`))
	}
	to := &client{}
	err := p.router.Serve(t.Context(), completion(7, ``), to)
	e := apierror.From(err)
	if e == nil || e.HTTPStatus() != 400 || to.status != 0 {
		t.Fatalf("Serve() = %v, the client got %d", err, to.status)
	}
	if _, body := e.Body(apierror.OpenAI); !strings.Contains(string(body), "bad temperature") {
		t.Errorf("the client is told %q", body)
	}
	p.end()
}

// A client that leaves between the legs leaves its blocks pinned at the engine: they stay booked until their lease ends, and no longer.
func TestBlocksOfAClientThatLeftAreBookedUntilTheLeaseEnds(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	p := newPair(t, nil, func(_ http.ResponseWriter, r *http.Request) {
		leave()
		<-r.Context().Done()
	})
	p.router.SetLegs(20*time.Second, time.Hour)
	if err := p.router.Serve(ctx, completion(7, `,"stream":true`), &client{}); err == nil {
		t.Error("the client that left was answered")
	}
	slot := p.params.Registry.Snapshot().Replicas[0].Slots[0]
	if l := p.book.View(slot, time.Now()); l.InFlight != 1 || l.DecodeBlocks == 0 || l.PrefillTokens != 0 {
		t.Errorf("the rank that prefilled has %+v", l)
	}
	if got := p.counted("kvpilot.router.transfers"); got != "1 left" {
		t.Errorf("counted %s", got)
	}
	if got := p.counted("kvpilot.router.pinned_prompts"); got != "1 " {
		t.Errorf("%s pinned prompts", got)
	}
}

func TestPinnedBlocksAreReleasedWithTheirLease(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	p := newPair(t, nil, func(_ http.ResponseWriter, r *http.Request) {
		leave()
		<-r.Context().Done()
	})
	if err := p.router.Serve(ctx, completion(7, ``), &client{}); err == nil {
		t.Error("the client that left was answered")
	}
	p.end()
	p.eventually("no prompt is pinned", func() bool { return p.counted("kvpilot.router.pinned_prompts") == "" })
}

func TestClientThatLeavesDuringThePrefillLeavesNothing(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	p := newPair(t, func(_ http.ResponseWriter, r *http.Request) {
		leave()
		<-r.Context().Done()
	}, nil)
	if err := p.router.Serve(ctx, completion(7, ``), &client{}); err == nil {
		t.Error("the client that left was answered")
	}
	if p.parts() != "prefill  " || p.counted("kvpilot.router.prefills") != "1 canceled" || p.counted("kvpilot.router.pinned_prompts") != "" {
		t.Errorf("the engines were asked for %q; prefills %s", p.parts(), p.counted("kvpilot.router.prefills"))
	}
	p.eventually("the engine saw that the client left", func() bool { return p.engines[0].givenUp() == 1 })
	p.end()
}

// A stream that breaks after its first token is as any other: nothing of it is served whole from its beginning.
func TestBrokenStreamOfASplitRequestIsNotRepeated(t *testing.T) {
	p := newPair(t, nil, streaming([]string{`data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a"}]}` + "\n\n"}, cut))
	to := &client{}
	if err := p.router.Serve(t.Context(), completion(7, `,"stream":true`), to); err == nil || to.status != 200 {
		t.Errorf("Serve() = %v, the client got %d", err, to.status)
	}
	if p.parts() != "prefill decode " || p.counted("kvpilot.router.transfers") != "1 read" {
		t.Errorf("the engines were asked for %q, transfers %s", p.parts(), p.counted("kvpilot.router.transfers"))
	}
	p.end()
}

func TestSomeRequestsAreNeverSplit(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, nil)
	for _, more := range []string{`,"n":2`, `,"echo":true`, `,"prompt_logprobs":1`, `,"best_of":2`, `,"use_beam_search":true`} {
		must(t, p.router.Serve(t.Context(), completion(7, more), &client{}))
	}
	pinned := completion(7, "")
	pinned.Options.Pinned = "r1"
	must(t, p.router.Serve(t.Context(), pinned, &client{}))
	steers := completion(7, `,"kv_transfer_params":{"do_remote_prefill":false,"first":7}`)
	steers.Steers = true
	must(t, p.router.Serve(t.Context(), steers, &client{}))
	if parts := p.parts(); strings.Contains(parts, "prefill") {
		t.Errorf("the engines were asked for %q", parts)
	}
	p.end()
}

// Many requests at once under one id of the client: each answer comes from the cache of its own prompt, which works checks.
func TestRequestsOfOneIDDoNotShareCaches(t *testing.T) {
	p := newPair(t, nil, nil)
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() {
			to := &client{}
			if err := p.router.Serve(t.Context(), completion(1000+i, `,"stream":true`), to); err != nil || to.status != 200 {
				t.Errorf("Serve() = %v, %d", err, to.status)
			}
		})
	}
	wait.Wait()
	seen, split := map[string]bool{}, 0
	p.mu.Lock()
	for i := range p.engines {
		for _, l := range p.legs[i] {
			if l.part() == "whole" {
				continue
			}
			if split++; seen[l.id] || l.id == "req-1" {
				t.Errorf("the id %s was used again", l.id)
			}
			seen[l.id] = true
		}
	}
	p.mu.Unlock()
	if split == 0 {
		t.Error("none was split")
	}
	p.end()
}
