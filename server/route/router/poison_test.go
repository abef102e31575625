package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

// of is a chat call of a tenant with a message.
func of(tenant, message string) *intake.Call {
	call := chat(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, message))
	call.Tenant = tenant
	return call
}

// failsAt makes every engine of f do how to each message with the word poison, and counts those requests.
func failsAt(f *fleet, how http.HandlerFunc) (attempts *atomic.Int64) {
	attempts = new(atomic.Int64)
	f.script(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && bytes.Contains(body, []byte("poison")) {
			attempts.Add(1)
			how(w, r)
			return
		}
		text(200, `{"ok":true}`)(w, r)
	})
	return attempts
}

// closed checks that no breaker is open.
func closed(f *fleet) {
	f.t.Helper()
	for _, r := range f.params.Registry.Snapshot().Replicas {
		if s := f.params.Breaker.State(r.ID); s != breaker.Closed {
			f.t.Errorf("the breaker of %s is %s", r.ID, s)
		}
	}
}

func TestAPoisonedRequestIsItsOwnFault(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]http.HandlerFunc{
		"500": text(500, `{"error":{"message":"assertion failed"}}`), "503": text(503, "later"), "502": text(502, "bad"), "cut": cut, "cut after the head": streaming(nil, cut),
		"no HTTP": func(w http.ResponseWriter, _ *http.Request) { hijacked(w, "nonsense\r\n\r\n") },
	} {
		for kind, message := range map[string]string{"the same": "poison", "varied": "poison %d"} {
			for _, attacker := range []string{"mallory", "ann"} {
				t.Run(name+", "+kind+", "+attacker, func(t *testing.T) {
					f := start(t, 3, nil)
					attempts := failsAt(f, how)
					for i := range 60 {
						before := attempts.Load()
						text := strings.ReplaceAll(message, "%d", fmt.Sprint(i))
						if err := f.router.Serve(t.Context(), of(attacker, text), &client{}); err == nil {
							t.Fatal("the poison was served")
						}
						n := attempts.Load() - before
						most := int64(2)
						if name == "cut" { // over a connection that was kept, each attempt is sent again on a fresh one
							most = 4
						}
						if i >= 10 && n > most && (kind == "the same" || name == "500") {
							t.Fatalf("poison %d was tried %d times", i, n)
						}
						if i%3 == 0 {
							to := &client{}
							if err := f.router.Serve(t.Context(), of("ann", fmt.Sprint("hello ", i)), to); err != nil || to.status != 200 {
								t.Fatalf("after %d poisons an honest request gets %v", i+1, err)
							}
						}
					}
					if name != "503" { // which asks for pauses
						closed(f)
					}
					f.settled()
				})
			}
		}
	}
}

func TestTheWordsOfTheEngineReachThePoisoner(t *testing.T) {
	f := start(t, 3, nil)
	attempts := failsAt(f, text(500, `{"error":{"message":"assertion failed"}}`))
	for _, want := range []int64{2, 1, 1} { // the first time, it is compared
		attempts.Store(0)
		e := apierror.From(f.router.Serve(t.Context(), of("a", "poison"), &client{}))
		if e == nil || e.HTTPStatus() != 500 || attempts.Load() != want {
			t.Fatalf("Serve() = %v after %d attempts, want 500 after %d", e, attempts.Load(), want)
		}
		if _, body := e.Body(apierror.OpenAI); string(body) != `{"error":{"message":"assertion failed"}}` {
			t.Errorf("the client gets %q", body)
		}
	}
	attempts.Store(0)
	if err := f.router.Serve(t.Context(), of("b", "poison"), &client{}); err == nil || attempts.Load() != 2 {
		t.Errorf("the memory of one tenant's requests holds for another: %v, %d attempts", err, attempts.Load())
	}
}

func TestABrokenReplicaIsLeftThatFailsAllRequests(t *testing.T) {
	for name, tenants := range map[string][]string{"one tenant": {""}, "three tenants": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 3, nil)
			f.engines[1].does(text(500, `{"error":"CUDA"}`))
			for i := range 60 {
				to := &client{}
				if err := f.router.Serve(t.Context(), of(tenants[i%len(tenants)], fmt.Sprint("hello ", i)), to); err != nil || to.status != 200 {
					t.Fatalf("request %d: %v", i, err)
				}
			}
			if s := f.params.Breaker.State("r1"); s != breaker.Open {
				t.Errorf("its breaker is %s", s)
			}
			if n := f.engines[1].requests(); n > 10 {
				t.Errorf("it got %d requests", n)
			}
			f.settled()
		})
	}
}

// A replica's breaker opens in spite of requests that fail everywhere.
func TestPoisonDoesNotHideABrokenReplica(t *testing.T) {
	f := start(t, 3, nil)
	failsAt(f, text(500, "{}"))
	f.engines[1].does(text(500, "{}"))
	for i := range 90 {
		f.router.Serve(t.Context(), of("mallory", fmt.Sprint("poison ", i)), &client{})
		if err := f.router.Serve(t.Context(), of([]string{"ann", "ben"}[i%2], fmt.Sprint("hello ", i)), &client{}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if s := f.params.Breaker.State("r1"); s != breaker.Open {
		t.Errorf("its breaker is %s", s)
	}
	for _, id := range []replica.ID{"r0", "r2"} {
		if s := f.params.Breaker.State(id); s != breaker.Closed {
			t.Errorf("the breaker of %s is %s", id, s)
		}
	}
}

// With all breakers open, all replicas are used.
func TestAllOpenMeansUseAll(t *testing.T) {
	f := start(t, 3, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Attempts = 1 })
	for _, id := range []replica.ID{"r0", "r1", "r2"} {
		f.params.Breaker.Pause(id, 1e12)
	}
	for i := range 50 {
		if err := f.router.Serve(t.Context(), of("", fmt.Sprint("hello ", i)), &client{}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	f.settled()
}

// While one request is the trial of a replica, others are not sent there, and are not rejected either.
func TestOneTrialAtATime(t *testing.T) {
	f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
		c := breaker.DefaultConfig()
		c.OpenFor = 1
		p.Breaker = breaker.New(c)
		p.Attempts = 1
	})
	f.engines[0].does(cut)
	for i := range 20 {
		f.router.Serve(t.Context(), of("", fmt.Sprint("hello ", i)), &client{})
	}
	arrived := make(chan struct{}, 100)
	f.engines[0].does(func(w http.ResponseWriter, r *http.Request) { arrived <- struct{}{}; silent(w, r) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		call := of("", "the trial")
		call.Options.Pinned = "r0"
		done <- f.router.Serve(ctx, call, &client{})
	}()
	<-arrived
	for i := range 50 {
		if err := f.router.Serve(t.Context(), of("", fmt.Sprint("hello again ", i)), &client{}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) && reasonOf(err) != apierror.Cancelled {
		t.Errorf("the trial ended with %v", err)
	}
	if n := len(arrived); n > 0 && f.params.Breaker.State("r0") == breaker.Open {
		t.Errorf("%d requests were sent while the trial ran", n)
	}
	f.settled()
}

func TestWhatCannotBeSentReachesNothing(t *testing.T) {
	f := start(t, 2, nil)
	for name, change := range map[string]func(*intake.Call){
		"a space in the query": func(c *intake.Call) { c.RawQuery = "a=b c" },
		"a line in the query":  func(c *intake.Call) { c.RawQuery = "a=b\r\nX: y" },
		"a space in the path":  func(c *intake.Call) { c.Path = "/v1/chat/completions /" },
		"a path without slash": func(c *intake.Call) { c.Path = "v1" },
		"no method":            func(c *intake.Call) { c.Method = "PO ST" },
	} {
		for range 30 {
			call := chat("")
			change(call)
			e := apierror.From(f.router.Serve(t.Context(), call, &client{}))
			if e == nil || e.HTTPStatus() != 400 || e.Reason != apierror.InvalidBody {
				t.Fatalf("%s: Serve() = %v, want 400", name, e)
			}
		}
	}
	if n := f.requests(); n != 0 {
		t.Errorf("%d requests reached a replica", n)
	}
	closed(f)
	if err := f.router.Serve(t.Context(), chat(""), &client{}); err != nil {
		t.Errorf("an honest request gets %v", err)
	}
	f.settled()
}
