package router_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// traced is a fleet whose router records every request.
type traced struct {
	*fleet
	recorder *recorder.Recorder
	mu       sync.Mutex
	got      []sdktrace.ReadOnlySpan // guarded by mu
}

func startTraced(t *testing.T, n int, sampler sdktrace.Sampler, change func(*router.Params, *chooser.Config, *registry.Config)) *traced {
	t.Helper()
	k := &traced{}
	k.recorder = recorder.New(recorder.Params{Sampler: sampler, To: recorder.KeepFunc(func(tr *recorder.Trace) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.got = append(k.got, tr.Spans()...)
	})})
	k.fleet = start(t, n, func(p *router.Params, c *chooser.Config, rc *registry.Config) {
		p.Scope = scope.New(nil, nil, k.recorder)
		if change != nil {
			change(p, c, rc)
		}
	})
	return k
}

// tree serves a call below a surface's span and draws what was recorded: names with the kind of fault
// and events, indented below their parents, in the order in which they began.
func (k *traced) tree(serve func(ctx context.Context)) string {
	k.t.Helper()
	ctx, s := k.recorder.Tracer("test").Start(k.t.Context(), "surface", trace.WithSpanKind(trace.SpanKindServer))
	serve(ctx)
	s.End()
	k.mu.Lock()
	defer k.mu.Unlock()
	below := map[trace.SpanID][]sdktrace.ReadOnlySpan{}
	var top sdktrace.ReadOnlySpan
	for _, s := range k.got {
		below[s.Parent().SpanID()] = append(below[s.Parent().SpanID()], s)
		if s.Name() == "surface" {
			top = s
		}
		if s.EndTime().Before(s.StartTime()) || s.StartTime().UnixNano() < 1e18 {
			k.t.Errorf("%s is from %v to %v", s.Name(), s.StartTime(), s.EndTime())
		}
	}
	if top == nil {
		return ""
	}
	var b strings.Builder
	var draw func(s sdktrace.ReadOnlySpan, depth int)
	draw = func(s sdktrace.ReadOnlySpan, depth int) {
		fmt.Fprintf(&b, "%s%s", strings.Repeat(" ", depth), strings.TrimPrefix(s.Name(), "kvpilot."))
		if s.Status().Code == codes.Error {
			b.WriteString(" !")
			for _, a := range s.Attributes() {
				if a.Key == "error.type" {
					b.WriteString(a.Value.AsString())
				}
			}
		}
		for _, e := range s.Events() {
			b.WriteString(" *" + strings.TrimPrefix(e.Name, "kvpilot."))
			if e.Name == "kvpilot.resume" {
				for _, a := range e.Attributes {
					if a.Value.Type() == attribute.STRING {
						fmt.Fprintf(&b, "(%s=%s0)", a.Key, a.Value.AsString())
					} else {
						fmt.Fprintf(&b, "(%s=%d)", a.Key, a.Value.AsInt64())
					}
				}
			}
		}
		b.WriteString("\n")
		children := below[s.SpanContext().SpanID()]
		slices.SortStableFunc(children, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
		for _, c := range children {
			draw(c, depth+1)
		}
	}
	draw(top, 0)
	k.got = nil
	return b.String()
}

const (
	decidedTree = " score\n choose\n"
	dialed      = "  dial\n"
)

// firstly refuses the first request that any engine gets, and answers the others.
func firstly(status int) http.HandlerFunc {
	var once sync.Once
	return func(w http.ResponseWriter, r *http.Request) {
		step := text(200, "{}")
		once.Do(func() { step = text(status, "loading") })
		step(w, r)
	}
}

// prompt is a streamed completion of n token ids that begin with first.
func prompt(first, n int, more string) *intake.Call {
	var ids strings.Builder
	for i := range n {
		if i > 0 {
			ids.WriteByte(',')
		}
		ids.WriteString(strconv.Itoa(first + i))
	}
	return &intake.Call{
		Route: openai.RouteCompletions, Method: http.MethodPost, Path: "/v1/completions", Header: http.Header{"Content-Type": {"application/json"}},
		Body: []byte(`{"model":"m","stream":true` + more + `,"prompt":[` + ids.String() + `]}`), RequestID: "req-" + strconv.Itoa(first),
	}
}

var answered = []string{"data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n", "data: [DONE]\n\n"}

func TestTheSpansOfARequestTellItsStory(t *testing.T) {
	all := sdktrace.AlwaysSample()
	first := decidedTree + " proxy *first_token\n" + dialed + "  first_byte\n  stream\n release\n"
	cases := map[string]struct {
		call  *intake.Call
		steps []http.HandlerFunc
		want  string
	}{
		"an answer in one piece": {chat(""), nil, " read\n tokenize\n" + decidedTree + " proxy\n" + dialed + "  first_byte\n  stream\n release\n"},
		"a stream":               {prompt(1, 100, ""), []http.HandlerFunc{streaming(answered, nil)}, " read\n tokenize\n" + first},
		"a second attempt": {chat(""), []http.HandlerFunc{firstly(503)}, " read\n tokenize\n" +
			decidedTree + " proxy !unavailable\n" + dialed + "  first_byte\n release\n" + decidedTree + " proxy\n" + dialed + "  first_byte\n  stream\n release\n"},
		"a body that is not taken": {&intake.Call{Route: openai.RouteChat, Method: http.MethodPost, Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte("{")}, nil, " read !INVALID_BODY\n"},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			k := startTraced(t, 2, all, nil)
			if c.steps != nil {
				k.script(c.steps...)
			}
			got := k.tree(func(ctx context.Context) {
				k.router.Serve(ctx, c.call, &client{})
			})
			head, rest, _ := strings.Cut(got, "\n")
			if !strings.HasPrefix(head, "surface") || rest != c.want {
				t.Errorf("the spans are\n%s\nwant below the surface\n%s", got, c.want)
			}
		})
	}
	t.Run("a client that leaves a stream", func(t *testing.T) {
		k := startTraced(t, 1, all, nil)
		k.script(streaming(answered[:1], silent))
		got := k.tree(func(ctx context.Context) {
			ctx, leave := context.WithCancel(ctx)
			defer leave()
			to := &client{onWrite: func([]byte) error { leave(); return nil }}
			if err := k.router.Serve(ctx, prompt(1, 100, ""), to); err == nil {
				t.Error("the call succeeded")
			}
		})
		if want := " proxy !canceled *first_token\n" + dialed + "  first_byte\n  stream !canceled\n release\n"; !strings.HasSuffix(got, want) {
			t.Errorf("the spans are\n%s\nwant at the end\n%s", got, want)
		}
	})
	t.Run("a stored answer", func(t *testing.T) {
		k := startTraced(t, 1, all, nil)
		got := k.tree(func(ctx context.Context) {
			call := &intake.Call{Route: openai.RouteResponses, Method: http.MethodGet, Path: "/v1/responses/x", Header: http.Header{}}
			if err := k.router.Stored(ctx, call, "x", &client{}); err != nil {
				t.Error(err)
			}
		})
		if want := "surface\n proxy\n" + dialed + "  first_byte\n  stream\n release\n"; got != want {
			t.Errorf("the spans are\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("one that failed outside of the sample", func(t *testing.T) {
		k := startTraced(t, 2, sdktrace.NeverSample(), nil)
		k.script(firstly(503))
		if got := k.tree(func(ctx context.Context) {
			if err := k.router.Serve(ctx, chat(""), &client{}); err != nil {
				t.Error(err)
			}
		}); !strings.Contains(got, "proxy !unavailable") {
			t.Errorf("the spans are\n%s\nwant the attempt that failed", got)
		}
		k = startTraced(t, 2, sdktrace.NeverSample(), nil)
		if got := k.tree(func(ctx context.Context) {
			if err := k.router.Serve(ctx, chat(""), &client{}); err != nil {
				t.Error(err)
			}
		}); got != "" {
			t.Errorf("a good one outside of the sample is kept:\n%s", got)
		}
	})
}

// A client's mistakes are not in the traces that are kept for how they ended: a clumsy client would fill the store of traces.
func TestTracesOfClientsMistakesAreNotKept(t *testing.T) {
	gone, leave := context.WithCancel(context.Background())
	leave()
	for name, c := range map[string]struct {
		call  *intake.Call
		steps []http.HandlerFunc
		gone  bool
	}{
		"a body that is not taken":    {call: &intake.Call{Route: openai.RouteChat, Method: http.MethodPost, Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte("{")}},
		"a model that no replica has": {call: &intake.Call{Route: openai.RouteChat, Method: http.MethodPost, Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte(`{"model":"other","messages":[]}`)}},
		"what an engine refuses":      {call: chat(""), steps: []http.HandlerFunc{text(400, `{"error":{"message":"max_tokens"}}`)}},
		"a client that left":          {call: chat(""), gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			k := startTraced(t, 1, sdktrace.NeverSample(), nil)
			if c.steps != nil {
				k.script(c.steps...)
			}
			got := k.tree(func(ctx context.Context) {
				if c.gone {
					ctx = trace.ContextWithSpan(gone, trace.SpanFromContext(ctx))
				}
				if err := k.router.Serve(ctx, c.call, &client{}); err == nil {
					t.Error("the call succeeded")
				}
			})
			if got != "" {
				t.Errorf("the trace is kept:\n%s", got)
			}
		})
	}
}
