package router_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// resuming lets streams go on n times.
func (f *fleet) resuming(n int) {
	f.t.Helper()
	c := intake.DefaultConfig()
	c.ResumeStreams = n
	f.router = router.New(c, f.params)
}

// event is one event of a chat or completion stream, as an engine sends it that was asked for ids.
func event(api, id, text, ids, finish string) string {
	if finish != "null" {
		finish = `"` + finish + `","stop_reason":null`
	}
	if api == "chat" {
		return fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":%s,"token_ids":%s}]}`+"\n\n", id, text, finish, ids)
	}
	prompt := ""
	if finish == "null" {
		prompt = `,"stop_reason":null`
	}
	return fmt.Sprintf(`data: {"id":%q,"object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s%s,"prompt_token_ids":null,"token_ids":%s}]}`+"\n\n", id, text, finish, prompt, ids)
}

const (
	role   = `data: {"id":"one","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2,3,4]}` + "\n\n"
	end    = "data: [DONE]\n\n"
	asking = `{"model":"m","stream":true,"max_tokens":9,"temperature":0.5,"messages":[{"role":"user","content":"hi"}]`
)

// hello is the beginning of a chat stream.
func hello() []string {
	return []string{role, event("chat", "one", "Hel", "[10]", "null"), event("chat", "one", "lo", "[11]", "null")}
}

// world is a continuation.
func world() []string {
	return []string{event("text", "two", " wor", "[12]", "null"), event("text", "two", "ld", "[13]", "stop"), end}
}

// helloWorld is what the client gets of both.
func helloWorld() string {
	return strings.Replace(role, "[1,2,3,4]", "null", 1) + event("chat", "one", "Hel", "null", "null") + event("chat", "one", "lo", "null", "null") +
		event("chat", "one", " wor", "null", "null") + event("chat", "one", "ld", "null", "stop") + end
}

// inTurn has the n-th request meet the n-th step, on whichever engine it comes to, and keeps what came.
func (f *fleet) inTurn(steps ...http.HandlerFunc) (got func() []string) {
	var mu sync.Mutex
	var list []string
	f.script(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		step := steps[min(len(list), len(steps)-1)]
		list = append(list, r.URL.Path+" "+string(body))
		mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(nil))
		step(w, r)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// whole is a step that sends a stream that comes to its end.
func whole(pieces []string) http.HandlerFunc { return streaming(pieces, nil) }

func TestAStreamGoesOnOnAnotherReplica(t *testing.T) {
	for name, first := range map[string]http.HandlerFunc{
		"the connection breaks":     streaming(hello(), cut),
		"it breaks inside an event": streaming(append(hello(), event("chat", "one", "lost", "[99]", "null")[:60]), cut),
		"it ends too early":         whole(hello()),
		"the engine died behind it": whole(append(hello(), `data: {"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}`+"\n\n", end)),
		"ids without text":          streaming(append(hello(), event("chat", "one", "", "[99]", "null")), cut),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			got := f.inTurn(first, whole(world()))
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil {
				t.Fatalf("Serve() = %v", err)
			}
			silence := event("chat", "one", "", "null", "null") // what ids without text look like
			if strings.Replace(to.body.String(), silence, "", 1) != helloWorld() || to.status != 200 {
				t.Errorf("the client got %d\n%s\nwant\n%s", to.status, &to.body, helloWorld())
			}
			want := []string{
				"/v1/chat/completions " + asking + `,"return_token_ids":true}`,
				`/v1/completions {"model":"m","stream":true,"return_token_ids":true,"max_tokens":7,"prompt":[1,2,3,4,10,11],"temperature":0.5}`,
			}
			if !slices.Equal(got(), want) {
				t.Errorf("the engines got\n%s\nwant\n%s", strings.Join(got(), "\n"), strings.Join(want, "\n"))
			}
			if a, b := f.engines[0].requests(), f.engines[1].requests(); a != 1 || b != 1 {
				t.Errorf("the engines got %d and %d requests, want one each", a, b)
			}
			f.settled()
			if ends := f.ends(); !slices.Equal(ends, []decision.End{decision.EndResumed, decision.EndCompleted}) {
				t.Errorf("the decisions ended %v", ends)
			}
		})
	}
}

// Usage is the whole request's, for the client and for the record.
func TestUsageOfAStreamThatWentOn(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(1)
	usage := `data: {"id":"two","object":"text_completion","created":9,"model":"m","choices":[],"usage":{"prompt_tokens":6,"total_tokens":8,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":6}}}` + "\n\n"
	f.inTurn(streaming(hello(), cut), whole([]string{world()[0], world()[1], usage, end}))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+`,"stream_options":{"include_usage":true}}`), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	want := `data: {"id":"one","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":4}}}`
	if !strings.Contains(to.body.String(), want) {
		t.Errorf("the client got\n%s\nwant in it\n%s", &to.body, want)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.outcomes[len(f.outcomes)-1]; last.PromptTokens != 6 || last.OutputTokens != 2 {
		t.Errorf("the last attempt is recorded with %d and %d tokens, want its own 6 and 2", last.PromptTokens, last.OutputTokens)
	}
}

// A stop string that begins in what the dead replica held back, and ends in the continuation, ends the stream; its replica is left alone.
func TestAStopStringAcrossTheBreak(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(1)
	for _, e := range f.engines {
		e.mu.Lock()
		e.says = "Hello"
		e.mu.Unlock()
	}
	first := []string{role, event("chat", "one", "H", "[10]", "null"), event("chat", "one", "el", "[11]", "null")}
	got := f.inTurn(streaming(first, cut), streaming(world()[:1], silent))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+`,"stop":["o w"],"min_tokens":2,"stream_options":{"include_usage":true}}`), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	want := strings.Replace(event("chat", "one", "l", "null", "stop"), `"stop_reason":null`, `"stop_reason":"o w"`, 1) +
		`data: {"id":"one","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3}}` + "\n\n" + end
	if !strings.HasSuffix(to.body.String(), event("chat", "one", "el", "null", "null")+want) {
		t.Fatalf("the client got\n%s\nwant at its end\n%s", &to.body, want)
	}
	if list := got(); len(list) != 2 || list[1] != `/v1/completions {"model":"m","stream":true,"return_token_ids":true,"max_tokens":7,"prompt":[1,2,3,4,10,11],"temperature":0.5,"stream_options":{"include_usage":true}}` {
		t.Errorf("the engines got %s", list)
	}
	f.eventually("the engine is left alone", func() bool { return f.engines[0].givenUp()+f.engines[1].givenUp() == 1 })
	f.settled()
	if ends := f.ends(); !slices.Equal(ends, []decision.End{decision.EndResumed, decision.EndCompleted}) {
		t.Errorf("the decisions ended %v", ends)
	}
}

// A completion goes on in its own words, and an answer without a limit has what the context leaves.
func TestACompletionGoesOn(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(1)
	first := strings.Replace(event("text", "one", "Hel", "[10]", "null"), `"prompt_token_ids":null`, `"prompt_token_ids":[5,6]`, 1)
	got := f.inTurn(streaming([]string{first}, cut), whole(world()))
	call := &intake.Call{
		Route: openai.RouteCompletions, Method: http.MethodPost, Path: "/v1/completions", Header: http.Header{"Content-Type": {"application/json"}},
		Body: []byte(`{"model":"m","stream":true,"prompt":[5,6],"max_tokens":null}`), RequestID: "req-1",
	}
	to := &client{}
	if err := f.router.Serve(t.Context(), call, to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	want := event("text", "one", "Hel", "null", "null") + event("text", "one", " wor", "null", "null") + event("text", "one", "ld", "null", "stop") + end
	if to.body.String() != want {
		t.Errorf("the client got\n%s\nwant\n%s", &to.body, want)
	}
	if list := got(); len(list) != 2 || !strings.Contains(list[1], `"max_tokens":15,"prompt":[5,6,10]}`) {
		t.Errorf("the engines got %s", list)
	}
	got = f.inTurn(streaming(hello(), cut), whole(world()))
	if err := f.router.Serve(t.Context(), chat(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`), &client{}); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if list := got(); len(list) != 2 || !strings.Contains(list[1], `"max_tokens":131066,"prompt":[1,2,3,4,10,11]}`) {
		t.Errorf("the engines got %s", list)
	}
}

func TestAStreamGoesOnAsOftenAsAllowed(t *testing.T) {
	f := start(t, 4, nil)
	f.resuming(2)
	got := f.inTurn(streaming(hello(), cut), streaming(world()[:1], cut), text(503, "loading"), whole(world()[1:]))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if to.body.String() != helloWorld() {
		t.Errorf("the client got\n%s\nwant\n%s", &to.body, helloWorld())
	}
	if list := got(); len(list) != 4 || list[2] != list[3] || !strings.Contains(list[3], `"max_tokens":6,"prompt":[1,2,3,4,10,11,12]`) {
		t.Errorf("the engines got %s", list)
	}
	f.settled()
	if ends := f.ends(); !slices.Equal(ends, []decision.End{decision.EndResumed, decision.EndResumed, decision.EndMoved, decision.EndCompleted}) {
		t.Errorf("the decisions ended %v", ends)
	}
}

func TestAStreamWhoseEndAloneIsMissingIsEnded(t *testing.T) {
	for name, c := range map[string]struct{ more, sent, want string }{
		"the end mark": {"}", "", end},
		"the usage also": {`,"stream_options":{"include_usage":true}}`, "",
			`data: {"id":"one","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3}}` + "\n\n" + end},
		"the usage was there": {`,"stream_options":{"include_usage":true}}`, `data: {"id":"one","choices":[],"usage":{"prompt_tokens":4}}` + "\n\n", end},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			f.inTurn(streaming(append(hello(), event("chat", "one", "!", "[12]", "stop")+c.sent), cut))
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(asking+c.more), to); err != nil {
				t.Fatalf("Serve() = %v", err)
			}
			if !strings.HasSuffix(to.body.String(), event("chat", "one", "!", "null", "stop")+c.sent+c.want) || f.requests() != 1 {
				t.Errorf("after %d requests the client got\n%s", f.requests(), &to.body)
			}
			f.settled()
			if ends := f.ends(); !slices.Equal(ends, []decision.End{decision.EndCompleted}) {
				t.Errorf("the decisions ended %v", ends)
			}
		})
	}
}

// A replica that takes the rest of a stream and gives nothing of it has refused: that is not one of the times that the stream may be resumed.
func TestAReplicaThatLeavesTheRestUntouched(t *testing.T) {
	for name, second := range map[string]http.HandlerFunc{
		"it breaks after its head":   streaming(nil, cut),
		"it ends at once":            streaming(nil, nil),
		"it sends half an event":     streaming([]string{world()[0][:40]}, cut),
		"its engine died in between": streaming([]string{`data: {"error":{"message":"dead","code":500}}` + "\n\n"}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 3, nil)
			f.resuming(1)
			got := f.inTurn(streaming(hello(), cut), second, whole(world()))
			to := &client{}
			err := f.router.Serve(t.Context(), chat(asking+"}"), to)
			if list := got(); err != nil || to.body.String() != helloWorld() || len(list) != 3 || list[1] != list[2] {
				t.Errorf("Serve() = %v after %s, the client got\n%s", err, list, &to.body)
			}
			f.settled()
		})
	}
}

// What cannot go on ends as it would without the setting.
func TestWhatDoesNotGoOn(t *testing.T) {
	t.Parallel()
	broken := streaming(hello(), cut)
	several := streaming(append(hello(), event("chat", "one", "ab", "[12,13]", "null")), cut)
	for name, c := range map[string]struct {
		times    int
		replicas int
		body     string
		call     func(*intake.Call)
		params   func(*router.Params)
		says     string
		steps    []http.HandlerFunc
		requests int
	}{
		"it is off":                   {times: 0, steps: []http.HandlerFunc{broken}, requests: 1},
		"the client does not want it": {times: 1, call: func(c *intake.Call) { c.Header.Set(router.HeaderResume, "off") }, steps: []http.HandlerFunc{broken}, requests: 1},
		"a request that is not exact": {times: 1, body: asking + `,"presence_penalty":1}`, steps: []http.HandlerFunc{broken}, requests: 1},
		"an engine without ids":       {times: 1, steps: []http.HandlerFunc{streaming([]string{event("chat", "one", "x", "null", "null")}, cut)}, requests: 1},
		"one replica":                 {times: 1, replicas: 1, steps: []http.HandlerFunc{broken}, requests: 1},
		"a replica of its own":        {times: 1, call: func(c *intake.Call) { c.Options.Pinned, c.Options.PinnedRank = "r0", -1 }, steps: []http.HandlerFunc{broken}, requests: 1},
		"as often as allowed":         {times: 1, steps: []http.HandlerFunc{broken, streaming(world()[:1], cut)}, requests: 2},
		"nobody takes it":             {times: 1, replicas: 3, steps: []http.HandlerFunc{broken, text(503, "loading")}, requests: 3},
		"the other refuses it":        {times: 1, steps: []http.HandlerFunc{broken, text(400, `{"error":{"message":"too long"}}`)}, requests: 3}, // once more without asking for ids
		"the other sends no stream":   {times: 1, steps: []http.HandlerFunc{broken, text(200, `{}`)}, requests: 3},                               // also of the first one, again,
		"half a character":            {times: 1, says: "a\uFFFD", steps: []http.HandlerFunc{several}, requests: 1},
		"what is held back is not sure": {
			times: 1, body: asking + `,"stop":["now"]}`, says: "Hello</s>", requests: 1,
			steps: []http.HandlerFunc{streaming([]string{role, event("chat", "one", "Hel", "[10,11]", "null")}, cut)},
		},
		"nothing is left of the limit": {times: 1, body: strings.Replace(asking, `"max_tokens":9`, `"max_tokens":2`, 1) + "}", steps: []http.HandlerFunc{broken}, requests: 1},
		"the budget of the second time": {
			times: 2, replicas: 3, params: func(p *router.Params) {
				p.Budget = retry.NewBudget(retry.Config{Attempts: 3})
				p.Budget.Withdraw()
			},
			steps: []http.HandlerFunc{broken, streaming(world()[:1], cut)}, requests: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := max(c.replicas, 2)
			if c.replicas == 1 {
				n = 1
			}
			f := start(t, n, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				if c.params != nil {
					c.params(p)
				}
			})
			f.resuming(c.times)
			for _, e := range f.engines {
				e.mu.Lock()
				e.says = c.says
				e.mu.Unlock()
			}
			f.inTurn(c.steps...)
			call := chat(c.body)
			if c.body == "" {
				call = chat(asking + "}")
			}
			if c.call != nil {
				c.call(call)
			}
			to := &client{}
			err := f.router.Serve(t.Context(), call, to)
			if reasonOf(err) != apierror.UpstreamStreamBroken || f.requests() != c.requests {
				t.Errorf("Serve() = %v after %d requests, want a broken stream after %d", err, f.requests(), c.requests)
			}
			if bytes.Contains(to.body.Bytes(), []byte("DONE")) {
				t.Errorf("the client got %s", &to.body)
			}
			f.settled()
		})
	}
}

func TestTheTextOfSeveralIDsIsAskedFor(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(1)
	for _, e := range f.engines {
		e.mu.Lock()
		e.says = "Hello"
		e.mu.Unlock()
	}
	got := f.inTurn(streaming([]string{role, event("chat", "one", "Hello", "[10,11]", "null")}, cut), whole(world()))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if list := got(); len(list) != 2 || !strings.Contains(list[1], `"prompt":[1,2,3,4,10,11]`) || !strings.HasSuffix(to.body.String(), end) {
		t.Errorf("the engines got %s, the client %s", list, &to.body)
	}
}

// Off, nothing is added to the request and nothing taken from the answer.
func TestWithoutTheSettingBytesPassAsTheyAre(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(0)
	all := append(hello(), event("chat", "one", "!", "[12]", "stop"), end)
	got := f.inTurn(whole(all))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if to.body.String() != strings.Join(all, "") || got()[0] != "/v1/chat/completions "+asking+"}" {
		t.Errorf("the engine got %s, the client\n%s", got(), &to.body)
	}
}

// A client that leaves, or a deadline, ends what goes on like anything else.
func TestTheClientLeavesWhatWentOn(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(1)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	f.inTurn(streaming(hello(), cut), streaming(world()[:1], silent))
	to := &client{onWrite: func(p []byte) error {
		if bytes.Contains(p, []byte(" wor")) {
			leave()
		}
		return nil
	}}
	if err := f.router.Serve(ctx, chat(asking+"}"), to); reasonOf(err) != apierror.Cancelled {
		t.Errorf("Serve() = %v, want canceled", err)
	}
	f.eventually("the engine is left alone", func() bool { return f.engines[0].givenUp()+f.engines[1].givenUp() == 1 })
	f.settled()
}

// A replica that refused the request may have room for the rest of its answer.
func TestWhoRefusedTheRequestMayTakeItsRest(t *testing.T) {
	f := start(t, 2, nil)
	f.resuming(1)
	f.inTurn(text(503, "loading"), streaming(hello(), cut), whole(world()))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if to.body.String() != helloWorld() {
		t.Errorf("the client got\n%s\nwant\n%s", &to.body, helloWorld())
	}
	f.settled()
}

// A replica that breaks a stream is not asked again, however good its cache is.
func TestTheDeadReplicaIsNotChosen(t *testing.T) {
	f := start(t, 3, nil)
	f.resuming(2)
	got := f.inTurn(streaming(hello(), cut), streaming(world()[:1], cut), whole(world()[1:]))
	if err := f.router.Serve(t.Context(), chat(asking+"}"), &client{}); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[replica.ID]int{}
	for _, o := range f.outcomes {
		seen[o.Replica]++
	}
	if len(seen) != 3 || len(got()) != 3 {
		t.Errorf("the replicas served %v", seen)
	}
}

// The attempts stand side by side under the request, whose span tells of the change.
func TestAResumedStreamInItsTrace(t *testing.T) {
	k := startTraced(t, 2, sdktrace.AlwaysSample(), nil)
	k.resuming(1)
	k.inTurn(streaming(hello(), cut), whole(world()))
	got := k.tree(func(ctx context.Context) {
		if err := k.router.Serve(ctx, chat(asking+"}"), &client{}); err != nil {
			t.Fatalf("Serve() = %v", err)
		}
	})
	if !strings.HasPrefix(got, "surface *resume(") || strings.Count(got, "\n proxy") != 2 || strings.Count(got, "\n proxy !broken *first_token") != 1 || !strings.Contains(got, "gen_ai.usage.output_tokens=2") {
		t.Errorf("the spans are\n%s\nwant a surface that tells of 2 tokens, an attempt that failed and one that did not", got)
	}
}
