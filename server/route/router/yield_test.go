package router_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// prompt is a streamed completion of n token ids that begin with first.
func prompt(first, n int, more string) *router.Call {
	var ids strings.Builder
	for i := range n {
		if i > 0 {
			ids.WriteByte(',')
		}
		ids.WriteString(strconv.Itoa(first + i))
	}
	return &router.Call{
		Route: openai.RouteCompletions, Method: http.MethodPost, Path: "/v1/completions", Header: http.Header{"Content-Type": {"application/json"}},
		Body: []byte(`{"model":"m","stream":true` + more + `,"prompt":[` + ids.String() + `]}`), RequestID: "req-" + strconv.Itoa(first),
	}
}

var answered = []string{"data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n", "data: [DONE]\n\n"}

// yielding has even one rank's requests give way.
func yielding(_ *router.Params, c *chooser.Config, _ *registry.Config) { c.YieldRanks = 1 }

// exact has the only rank's events be believed, so that what it computed is known to be kept.
func (f *fleet) exact() { f.index.SetState(0, kvblock.FeedExact) }

// byPrompt gives the n-th try of the long prompt its n-th step, and all else the answer: which of the
// two comes first is up to the network.
func byPrompt(e *engine, steps ...http.HandlerFunc) (tried func() int) {
	return byPromptOr(e, streaming(answered, nil), steps...)
}

// byPromptOr does the same with another step for all else.
func byPromptOr(e *engine, other http.HandlerFunc, steps ...http.HandlerFunc) (tried func() int) {
	var mu sync.Mutex
	tries := 0
	e.does(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // taken back before it was here
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		step := other
		if bytes.Contains(body, []byte("[1,2,3,")) {
			mu.Lock()
			step = steps[min(tries, len(steps)-1)]
			tries++
			mu.Unlock()
		}
		step(w, r)
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return tries
	}
}

// behind starts a long request and returns when the engine has it, as has tells; wait gives what came
// of it.
func (f *fleet) behind(ctx context.Context, call *router.Call, has func() int) (to *client, wait func() error) {
	to = &client{}
	var err error
	var all sync.WaitGroup
	all.Go(func() { err = f.router.Serve(ctx, call, to) })
	f.eventually("the engine has the long prompt", func() bool { return has() == 1 })
	return to, func() error { all.Wait(); return err }
}

func TestALongPromptIsTakenBackAndGoesOn(t *testing.T) {
	f := start(t, 1, yielding)
	f.exact()
	var mu sync.Mutex
	tries := map[string]string{} // of the long prompt, by the names that they had for the engine
	keep := func(then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			tries[r.Header.Get("X-Request-Id")] = string(body)
			mu.Unlock()
			then(w, r)
		}
	}
	tried := byPrompt(f.engines[0], keep(silent), keep(streaming(answered, nil)))
	long, wait := f.behind(t.Context(), prompt(1, 100000, ""), tried)
	short := &client{}
	if err := f.router.Serve(t.Context(), prompt(500000, 64, ""), short); err != nil {
		t.Fatalf("the short one: %v", err)
	}
	if err := wait(); err != nil {
		t.Fatalf("the long one: %v", err)
	}
	want := strings.Join(answered, "")
	if long.body.String() != want || short.body.String() != want {
		t.Errorf("the clients got %q and %q", &long.body, &short.body)
	}
	f.eventually("the engine has lost the first try", func() bool { return f.engines[0].givenUp() == 1 })
	mu.Lock() // both tries have been kept: one was lost, the other answered
	if n, body := f.engines[0].requests(), tries["req-1"]; n != 3 || body == "" || tries["req-1-1"] != body {
		t.Errorf("the engine got %d requests, want 3 of which two are the same bytes under names of their own: the first may still be in a step there", n)
	}
	mu.Unlock()
	f.settled()
	ends := f.ends()
	slices.Sort(ends)
	if !slices.Equal(ends, []decision.End{decision.EndCompleted, decision.EndCompleted, decision.EndYielded}) {
		t.Errorf("the decisions ended %v", ends)
	}
}

// Who gave way is not sent again before the engine has the one that overtook it.
func TestWhoGaveWayComesBehind(t *testing.T) {
	f := start(t, 1, func(p *router.Params, c *chooser.Config, r *registry.Config) {
		yielding(p, c, r)
		r.Replicas[0].MaxBatchedTokens = 40_000 // half a full step takes 2.5 s, the long prompt 37 s
	})
	f.exact()
	here, answer := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	tried := byPromptOr(f.engines[0], func(w http.ResponseWriter, r *http.Request) {
		close(here)
		<-answer
		streaming(answered, nil)(w, r)
	}, silent, streaming(answered, nil))
	_, wait := f.behind(t.Context(), prompt(1, 130_000, ""), tried)
	var all sync.WaitGroup
	began := time.Now()
	all.Go(func() {
		if err := f.router.Serve(t.Context(), prompt(500000, 64, ""), &client{}); err != nil {
			t.Errorf("the short one: %v", err)
		}
	})
	f.eventually("the engine has the short one and has lost the long one", func() bool {
		select {
		case <-here:
			return f.engines[0].givenUp() == 1
		default:
			return false
		}
	})
	for range 10 {
		time.Sleep(10 * time.Millisecond)                              // what must not happen has no sign to wait for
		if n := tried(); n != 1 && time.Since(began) < 2*time.Second { // later it may have been sent: this machine is too slow to tell
			t.Fatalf("the long one was sent %d times before the short one began to be answered", n)
		}
	}
	release()
	if err := wait(); err != nil {
		t.Fatalf("the long one: %v", err)
	}
	all.Wait()
	f.settled()
}

func TestWhatIsNeverTakenBack(t *testing.T) {
	for name, call := range map[string]*router.Call{
		"prompt_logprobs, for which engines read no cache": prompt(1, 100000, `,"prompt_logprobs":1`),
		"a plain answer": func() *router.Call {
			c := prompt(1, 100000, "")
			c.Body = []byte(strings.Replace(string(c.Body), `"stream":true`, `"stream":false`, 1))
			return c
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, yielding)
			f.exact()
			release := make(chan struct{})
			f.engines[0].does(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				<-release
				streaming(answered, nil)(w, r)
			}, streaming(answered, nil))
			_, wait := f.behind(t.Context(), call, f.requests)
			var all sync.WaitGroup
			all.Go(func() {
				if err := f.router.Serve(t.Context(), prompt(500000, 64, ""), &client{}); err != nil {
					t.Errorf("the short one: %v", err)
				}
			})
			f.eventually("the short one waits", func() bool { return f.waiting() == 1 })
			close(release)
			if err := wait(); err != nil {
				t.Errorf("the long one: %v", err)
			}
			all.Wait()
			f.settled()
			if ends := f.ends(); len(ends) != 2 || f.engines[0].givenUp() != 0 {
				t.Errorf("the decisions ended %v", ends)
			}
		})
	}
}

// After it gave way, whatever happens to a request happens to it once.
func TestWhatCanHappenToWhoGaveWay(t *testing.T) {
	t.Run("the client leaves", func(t *testing.T) {
		f := start(t, 1, yielding)
		f.exact()
		entered := make(chan struct{})
		tried := byPrompt(f.engines[0], silent, func(w http.ResponseWriter, r *http.Request) {
			close(entered)
			silent(w, r)
		})
		ctx, cancel := context.WithCancel(t.Context())
		to, wait := f.behind(ctx, prompt(1, 100000, ""), tried)
		if err := f.router.Serve(t.Context(), prompt(500000, 64, ""), &client{}); err != nil {
			t.Fatalf("the short one: %v", err)
		}
		<-entered
		cancel()
		if err := wait(); !errors.Is(err, context.Canceled) || to.status != 0 {
			t.Errorf("the long one: %v, with status %d", err, to.status)
		}
		f.settled()
	})
	t.Run("the engine refuses", func(t *testing.T) {
		f := start(t, 1, yielding)
		f.exact()
		tried := byPrompt(f.engines[0], silent, text(400, `{"error":{"message":"no"}}`))
		_, wait := f.behind(t.Context(), prompt(1, 100000, ""), tried)
		if err := f.router.Serve(t.Context(), prompt(500000, 64, ""), &client{}); err != nil {
			t.Fatalf("the short one: %v", err)
		}
		if err := wait(); err == nil {
			t.Error("the engine's refusal was lost")
		}
		f.settled()
		if ends := f.ends(); len(ends) != 3 || !slices.Contains(ends, decision.EndRejected) || !slices.Contains(ends, decision.EndYielded) {
			t.Errorf("the decisions ended %v", ends)
		}
	})
}

// The engine's first byte and the word to give way may come at the same moment: the client gets one
// whole answer either way.
func TestGivingWayAtTheMomentOfTheFirstByte(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	gave := 0
	for round := range rounds {
		f := start(t, 1, yielding) // one that has learned nothing: the long prompt is worth seconds
		f.exact()
		first := make(chan struct{})
		tried := byPrompt(f.engines[0], func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-first:
				streaming(answered, nil)(w, r)
			case <-r.Context().Done():
			}
		}, streaming(answered, nil))
		long, wait := f.behind(t.Context(), prompt(1, 20000, ""), tried)
		go func() {
			time.Sleep(time.Duration(round%30) * 20 * time.Microsecond)
			close(first)
		}()
		short := &client{}
		if err := f.router.Serve(t.Context(), prompt(500000, 64, ""), short); err != nil {
			t.Fatalf("round %d, the short one: %v", round, err)
		}
		if err := wait(); err != nil {
			t.Fatalf("round %d, the long one: %v", round, err)
		}
		want := strings.Join(answered, "")
		if long.body.String() != want || short.body.String() != want {
			t.Fatalf("round %d: the clients got %q and %q", round, &long.body, &short.body)
		}
		f.settled()
		if slices.Contains(f.ends(), decision.EndYielded) {
			gave++
		}
	}
	t.Logf("%d of %d gave way", gave, rounds)
}
