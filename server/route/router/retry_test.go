package router_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// firstFails makes every engine fail once, so that whichever is chosen first fails and the next answers.
func firstFails(f *fleet, how http.HandlerFunc) {
	failed := make(chan struct{}, 1)
	failed <- struct{}{}
	for _, e := range f.engines {
		e.does(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-failed:
				how(w, r)
			default:
				text(200, `{"ok":true}`)(w, r)
			}
		})
	}
}

func TestAFaultBeforeTheFirstByteCostsARetryElsewhere(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]http.HandlerFunc{
		"429":                text(429, `{"error":"busy"}`, "Retry-After", "1"),
		"500":                text(500, `{"error":"broken"}`),
		"502":                text(502, "bad gateway"),
		"503":                text(503, "loading"),
		"504":                text(504, "late"),
		"connection cut":     cut,
		"cut after the head": streaming(nil, cut),
		"no HTTP at all":     func(w http.ResponseWriter, _ *http.Request) { hijacked(w, "nonsense\r\n\r\n") },
		"half an answer": func(w http.ResponseWriter, _ *http.Request) {
			hijacked(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{\"half\":")
		},
		"half an answer in chunks": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for range 3 {
				io.WriteString(w, `{"half":`)
				w.(http.Flusher).Flush()
			}
			cut(w, r)
		},
		"an answer too short": func(w http.ResponseWriter, _ *http.Request) {
			hijacked(w, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			firstFails(f, how)
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(""), to); err != nil {
				t.Fatalf("Serve() = %v", err)
			}
			if to.status != 200 || to.body.String() != `{"ok":true}` {
				t.Errorf("the client got %d %q", to.status, &to.body)
			}
			if a, b := f.engines[0].requests(), f.engines[1].requests(); a != 1 || b != 1 {
				t.Errorf("the engines got %d and %d requests, want one each", a, b)
			}
			f.settled()
			ends := f.ends()
			if len(ends) == 0 || ends[len(ends)-1] != decision.EndCompleted || slices.Contains(ends[:len(ends)-1], decision.EndCompleted) {
				t.Errorf("the decisions ended %v, want the last one completed and no other", ends)
			}
		})
	}
}

// hijacked writes bytes instead of an answer and closes.
func hijacked(w http.ResponseWriter, text string) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	io.WriteString(c, text)
	c.Close()
}

func TestAnAnswerAboutTheRequestItselfIsFinal(t *testing.T) {
	for _, status := range []int{400, 401, 404, 413, 422, 501} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			f := start(t, 2, nil)
			f.script(text(status, `{"error":{"message":"no","type":"x"}}`))
			to := &client{}
			err := f.router.Serve(t.Context(), chat(""), to)
			e := apierror.From(err)
			if e == nil || e.HTTPStatus() != status {
				t.Fatalf("Serve() = %v, want the engine's %d", err, status)
			}
			if _, body := e.Body(apierror.OpenAI); string(body) != `{"error":{"message":"no","type":"x"}}` {
				t.Errorf("the client is told %q, want the engine's own words", body)
			}
			if n := f.requests(); n != 1 || to.status != 0 {
				t.Errorf("%d requests, the client was begun with %d; want one request and nothing begun", n, to.status)
			}
			f.settled()
		})
	}
}

func TestRetriesAreBounded(t *testing.T) {
	t.Run("by attempts", func(t *testing.T) {
		f := start(t, 4, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Attempts = 3 })
		f.script(text(503, "loading"))
		err := f.router.Serve(t.Context(), chat(""), &client{})
		if reasonOf(err) != apierror.NoReplica || f.requests() != 3 {
			t.Errorf("Serve() = %v after %d requests, want no_replica after 3", err, f.requests())
		}
		f.settled()
	})
	t.Run("by the budget", func(t *testing.T) {
		f := start(t, 4, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
			p.Budget = retry.NewBudget(retry.Config{Attempts: 3})
		})
		f.script(text(503, "loading"))
		for range 3 {
			f.router.Serve(t.Context(), chat(""), &client{})
		}
		if n := f.requests(); n != 4 { // one retry was saved up
			t.Errorf("3 calls made %d requests, want 4", n)
		}
	})
	t.Run("but a replica that is gone costs nobody the first", func(t *testing.T) {
		f := start(t, 3, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
			p.Budget = retry.NewBudget(retry.Config{Attempts: 3})
			p.Breaker = breaker.New(breaker.Config{})
		})
		for f.params.Budget.Withdraw() { // nothing is saved up
		}
		f.script(cut)
		if err := f.router.Serve(t.Context(), chat(""), &client{}); reasonOf(err) != apierror.UpstreamUnreachable || f.requests() != 2 {
			t.Errorf("Serve() = %v after %d requests, want upstream_unreachable after 2: the second retry is paid for", err, f.requests())
		}
		f.settled()
	})
	t.Run("by the replicas there are", func(t *testing.T) {
		f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Attempts = 10 })
		f.script(text(429, "busy", "Retry-After", "7"))
		err := f.router.Serve(t.Context(), chat(""), &client{})
		e := apierror.From(err)
		if e == nil || e.HTTPStatus() != 429 || e.RetryAfterHeader() == "" || f.requests() != 2 {
			t.Errorf("Serve() = %v after %d requests, want a 429 with Retry-After after 2", err, f.requests())
		}
		f.settled()
	})
	t.Run("by the caller who pins a replica", func(t *testing.T) {
		f := start(t, 2, nil)
		f.script(text(503, "loading"))
		call := chat("")
		call.Options.Pinned = "r1"
		if err := f.router.Serve(t.Context(), call, &client{}); err == nil || f.engines[0].requests() != 0 || f.engines[1].requests() != 1 {
			t.Errorf("Serve() = %v, %d and %d requests", err, f.engines[0].requests(), f.engines[1].requests())
		}
	})
}

const chunk = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"

func TestNothingIsRetriedOnceTheClientHasAByte(t *testing.T) {
	f := start(t, 2, nil)
	f.script(streaming([]string{chunk}, cut))
	to := &client{}
	err := f.router.Serve(t.Context(), chat(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`), to)
	if reasonOf(err) != apierror.UpstreamStreamBroken || f.requests() != 1 {
		t.Errorf("Serve() = %v after %d requests, want a broken stream after 1", err, f.requests())
	}
	if to.status != 200 || to.body.String() != chunk {
		t.Errorf("the client got %d %q", to.status, &to.body)
	}
	f.settled()
	if ends := f.ends(); !slices.Contains(ends, decision.EndFailed) && !slices.Contains(ends, decision.EndMoved) {
		t.Errorf("the decision ended %v", ends)
	}
}

func TestAStreamWithoutItsEndIsBroken(t *testing.T) {
	f := start(t, 1, nil)
	f.script(streaming([]string{chunk}, nil)) // ends cleanly, but never said [DONE]
	err := f.router.Serve(t.Context(), chat(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`), &client{})
	if reasonOf(err) != apierror.UpstreamStreamBroken {
		t.Errorf("Serve() = %v, want a broken stream", err)
	}
	f.script(streaming([]string{chunk, "data: [DONE]\n\n"}, nil))
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`), to); err != nil || !strings.HasSuffix(to.body.String(), "[DONE]\n\n") {
		t.Errorf("Serve() = %v, body %q", err, &to.body)
	}
	f.settled()
}

func TestACallerWhoLeavesEndsEverything(t *testing.T) {
	const streamed = `{"model":"m","stream":true,"messages":[{"role":"user","content":"somebody who leaves"}]}`
	// Each case says what the engines do, and when the caller leaves.
	for name, c := range map[string]struct {
		prepare func(f *fleet)
		leave   func(f *fleet) bool
	}{
		"while tokenizing": {
			func(f *fleet) { f.engines[0].tokenizes(silent) },
			func(f *fleet) bool { return f.engines[0].asked() > 0 },
		},
		"before the head": {
			func(f *fleet) { f.script(silent) },
			func(f *fleet) bool { return f.requests() == 1 },
		},
		"in the middle of the stream": {
			func(f *fleet) { f.script(streaming([]string{chunk}, silent)) },
			func(f *fleet) bool { return f.requests() == 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			c.prepare(f)
			ctx, leave := context.WithCancelCause(t.Context())
			gone := apierror.New(apierror.Cancelled, "the client closed the connection", nil)
			done := make(chan error, 1)
			go func() { done <- f.router.Serve(ctx, chat(streamed), &client{}) }()
			f.eventually("the moment to leave", func() bool { return c.leave(f) })
			leave(gone)
			if err := <-done; reasonOf(err) != apierror.Cancelled {
				t.Errorf("Serve() = %v, want cancelled", err)
			}
			f.settled()
			if f.requests() > 0 {
				f.eventually("the engine sees its request aborted", func() bool { return f.engines[0].givenUp() == 1 })
				if ends := f.ends(); !slices.Equal(ends, []decision.End{decision.EndCanceled}) {
					t.Errorf("the decision ended %v, want canceled", ends)
				}
			}
		})
	}
	t.Run("seen by a write", func(t *testing.T) {
		f := start(t, 1, nil)
		f.script(streaming([]string{chunk}, silent))
		to := &client{onWrite: func([]byte) error { return errors.New("broken pipe") }}
		if err := f.router.Serve(t.Context(), chat(streamed), to); reasonOf(err) != apierror.Cancelled {
			t.Errorf("Serve() = %v, want cancelled", err)
		}
		f.eventually("the engine sees its request aborted", func() bool { return f.engines[0].givenUp() == 1 })
		f.settled()
	})
}

func TestFaultsOfTheCallerReachNoEngine(t *testing.T) {
	f := start(t, 1, nil)
	for name, c := range map[string]struct {
		body   string
		reason apierror.Reason
	}{
		"no JSON":       {`{"model":`, apierror.InvalidBody},
		"no model":      {`{"model":"other","messages":[]}`, apierror.ModelNotFound},
		"model no name": {`{"model":7}`, apierror.InvalidBody},
	} {
		if err := f.router.Serve(t.Context(), chat(c.body), &client{}); reasonOf(err) != c.reason {
			t.Errorf("%s: Serve() = %v, want %v", name, err, c.reason)
		}
	}
	if err := f.router.Serve(t.Context(), chat(`{"model":"other","messages":[]}`), &client{}); err == nil || !strings.Contains(err.Error(), "The model `other` does not exist. The only model is `m`.") {
		t.Errorf("an unknown model: %v", err)
	}
	if n := f.requests(); n != 0 {
		t.Errorf("the engine got %d requests", n)
	}
	f.settled()
}

func TestATokenizerFailsNoRequest(t *testing.T) {
	for name, step := range map[string]http.HandlerFunc{
		"down":      text(500, "broken"),
		"cut":       cut,
		"no ids":    text(200, `{"count":0,"max_model_len":4096,"tokens":[]}`),
		"not JSON":  text(200, "<html>"),
		"busy":      text(429, "later", "Retry-After", "30"),
		"not there": text(404, `{"detail":"Not Found"}`),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			for _, e := range f.engines {
				e.tokenizes(step)
			}
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(""), to); err != nil || to.status != 200 {
				t.Errorf("Serve() = %v, status %d", err, to.status)
			}
			f.settled()
		})
	}
}

// A lack of file descriptors is the router's own fault: 503 OVERLOADED, and no replica's breaker opens.
func TestWaits16NoDescriptorLeftIsNoReplicasFault(t *testing.T) {
	for _, code := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		t.Run(code.Error(), func(t *testing.T) {
			f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				p.Upstream = upstream.New(upstream.DefaultConfig(), upstream.Params{Dial: func(context.Context, string, string) (net.Conn, error) {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", code)}
				}})
			})
			for range 30 {
				err := f.router.Serve(t.Context(), chat(""), &client{})
				var fault *apierror.Error
				if !errors.As(err, &fault) || fault.Reason != apierror.Overloaded || fault.HTTPStatus() != 503 || fault.RetryAfter <= 0 {
					t.Fatalf("Serve() = %v", err)
				}
			}
			for _, r := range f.params.Registry.Snapshot().Replicas {
				if s := f.params.Breaker.State(r.ID); s != breaker.Closed || r.State != replica.StateReady {
					t.Errorf("%s: breaker %s, %s", r.ID, s, r.State)
				}
			}
			f.settled()
		})
	}
}
