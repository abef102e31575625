package router_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// developing is an engine in vLLM's development mode.
type developing struct {
	paused, sleeping atomic.Bool
	aborts           atomic.Int32
	answers          http.HandlerFunc
	asked            atomic.Int32 // questions about pauses
	production       bool         // it has no such routes
	pages            chan struct{}
}

// happens waits until the router has seen what was aborted before, and does it.
func (e *developing) happens(it func(*developing)) {
	if !e.production {
		<-e.pages
	}
	it(e)
}

func (e *developing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	switch r.URL.Path {
	case "/is_paused", "/is_sleeping":
		e.asked.Add(1)
		if e.production {
			http.NotFound(w, r)
			return
		}
		name := r.URL.Path[1:]
		fmt.Fprintf(w, `{"%s": %v}`, name, name == "is_paused" && e.paused.Load() || name == "is_sleeping" && e.sleeping.Load())
	case "/metrics":
		fmt.Fprintf(w, "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} 9.0\nvllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"m\"} %d.0\n", e.aborts.Load())
		select {
		case e.pages <- struct{}{}:
		default:
		}
	default:
		e.answers(w, r)
	}
}

// wakes ends every pause, and forgets what was seen.
func (e *developing) wakes() {
	e.paused.Store(false)
	e.sleeping.Store(false)
	select {
	case <-e.pages:
	default:
	}
}

func responses(stream bool) *intake.Call {
	c := chat(fmt.Sprintf(`{"model":"m","stream":%v,"input":"hi"}`, stream))
	c.Route, c.Path = openai.RouteResponses, openai.RouteResponses.Path()
	return c
}

// An answer of /v1/responses that a pause aborted looks whole. It ends with an error, or another replica gives it.
func TestAPausedResponseIsNoSuccess(t *testing.T) {
	const begin, completed = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hel\"}\n\n", "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n"
	for name, c := range map[string]struct {
		happens func(*developing)
		whole   bool
	}{
		"paused":                     {func(e *developing) { e.paused.Store(true); e.aborts.Add(1) }, false},
		"asleep":                     {func(e *developing) { e.sleeping.Store(true); e.aborts.Add(1) }, false},
		"nothing":                    {func(*developing) {}, true},
		"a client left":              {func(e *developing) { e.aborts.Add(1) }, true},
		"a pause that waits for all": {func(e *developing) { e.paused.Store(true) }, true},
		"no development mode":        {func(e *developing) { e.paused.Store(true); e.aborts.Add(1) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			e := &developing{production: name == "no development mode", pages: make(chan struct{}, 1)}
			f.script(e.ServeHTTP)
			f.engines[0].mu.Lock()
			f.engines[0].pauses = e.ServeHTTP
			f.engines[0].mu.Unlock()
			for range 2 { // the second time it is known whether the replica can be paused
				e.wakes()
				got, begun := context.WithCancel(t.Context())
				e.answers = streaming([]string{begin}, func(w http.ResponseWriter, r *http.Request) {
					<-got.Done()
					e.happens(c.happens)
					io.WriteString(w, completed)
				})
				to := &client{onWrite: func([]byte) error { begun(); return nil }}
				err := f.router.Serve(t.Context(), responses(true), to)
				want := begin
				if c.whole {
					want += completed
				}
				if (err == nil) != c.whole || to.body.String() != want || !c.whole && !strings.Contains(apierror.From(err).Message, "aborted") {
					t.Errorf("Serve() = %v, the client got\n%s", err, &to.body)
				}
				e.wakes()
				e.answers = func(w http.ResponseWriter, r *http.Request) {
					e.happens(c.happens)
					text(200, `{"status":"completed"}`)(w, r)
				}
				to = &client{}
				if err := f.router.Serve(t.Context(), responses(false), to); (err == nil) != c.whole || (to.body.Len() > 0) != c.whole {
					t.Errorf("not streamed: Serve() = %v, the client got %s", err, &to.body)
				}
			}
			if n := e.asked.Load(); e.production && n != 1 {
				t.Errorf("a replica without development mode was asked %d times", n)
			}
			f.settled()
		})
	}
}
