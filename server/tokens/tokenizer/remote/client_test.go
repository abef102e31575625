package remote

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
)

// engine serves on loopback, and is a replica.
func engine(t *testing.T, serve http.HandlerFunc) (*httptest.Server, *replica.Replica) {
	t.Helper()
	s := httptest.NewServer(serve)
	t.Cleanup(s.Close)
	return s, &replica.Replica{ID: "a", URL: s.URL, State: replica.StateReady, Version: "0.17.0", APIKey: secret.New("sesame")}
}

// patient is a pool that waits for answers on a machine that is busy: each question may take a minute, and none is asked twice.
func patient(t *testing.T, cfg Config, params Params) *Pool {
	t.Helper()
	cfg.Timeout = time.Minute
	p := New(cfg, params)
	for i := range p.latency.classes {
		p.latency.classes[i].p95 = time.Minute
	}
	runUntilCleanup(t, p)
	return p
}

// runUntilCleanup runs the pool; when the test ends, its connections are closed.
func runUntilCleanup(t *testing.T, p *Pool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

// A question has the replica's key, its own content type and the caller's span; no rank, because every rank tokenizes alike.
func TestWhatAQuestionBrings(t *testing.T) {
	var got atomic.Pointer[http.Request]
	_, r := engine(t, func(w http.ResponseWriter, req *http.Request) {
		got.Store(req)
		fmt.Fprint(w, `{"count":1,"tokens":[7]}`)
	})
	r.Slots = []replica.Slot{0, 1}
	p := patient(t, DefaultConfig(), Params{})
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	a, err := p.Do(trace.ContextWithSpanContext(t.Context(), span), []*replica.Replica{r}, &Job{Op: OpText, Model: "m", Text: strings.Repeat("long", 10_000)})
	if err != nil || len(a.IDs) != 1 || a.IDs[0][0] != 7 {
		t.Fatalf("Do() = %+v, %v", a, err)
	}
	h := got.Load().Header
	for name, want := range map[string]string{
		"Authorization": "Bearer sesame", "Content-Type": "application/json", "X-Data-Parallel-Rank": "", "Accept-Encoding": "",
		"Traceparent": "00-01000000000000000000000000000000-0200000000000000-01",
	} {
		if h.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, h.Get(name), want)
		}
	}
}

// An answer above the limit is refused whether or not its size is announced, and the next question finds a connection.
func TestAnswersAreBounded(t *testing.T) {
	for _, announced := range []bool{true, false} {
		var size int
		_, r := engine(t, func(w http.ResponseWriter, _ *http.Request) {
			body := `{"count":1,"tokens":[7],"x":"` + strings.Repeat("x", size) + `"}`
			if announced {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			} else {
				w.(http.Flusher).Flush()
			}
			fmt.Fprint(w, body)
		})
		cfg := DefaultConfig()
		cfg.MaxAnswerBytes = 40_000
		p := patient(t, cfg, Params{})
		for _, tc := range []struct {
			size int
			want string
		}{{10, "ok"}, {39_000, "ok"}, {41_000, "too_large"}, {10, "ok"}} {
			size = tc.size
			if _, err := ask(t, p, []*replica.Replica{r}); kind(err) != tc.want {
				t.Errorf("announced %v, %d bytes: %v, want %s", announced, tc.size, err, tc.want)
			}
		}
	}
}

// An error's text is kept up to its bound, and the client's own fault keeps its status.
func TestALongRefusalIsCutOff(t *testing.T) {
	_, r := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, strings.Repeat("x", 3*maxErrorBody))
	})
	p := patient(t, DefaultConfig(), Params{})
	_, err := ask(t, p, []*replica.Replica{r})
	refusal, ok := err.(*ClientFault)
	if !ok || refusal.Status != http.StatusBadRequest || len(refusal.Body) != maxErrorBody {
		t.Errorf("%T %v", err, err)
	}
}

// The caller's end closes the connection, in every phase of an answer, so that the engine stops.
func TestTheCallersEndClosesTheConnection(t *testing.T) {
	for name, begin := range map[string]func(w http.ResponseWriter){
		"before the head": func(http.ResponseWriter) {},
		"within the body": func(w http.ResponseWriter) { fmt.Fprint(w, `{"tokens":[1,`); w.(http.Flusher).Flush() },
	} {
		asked, gone := make(chan struct{}), make(chan struct{})
		_, r := engine(t, func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body) // until then the server does not watch the connection
			begin(w)
			close(asked)
			<-req.Context().Done()
			close(gone)
		})
		p := patient(t, DefaultConfig(), Params{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-asked; cancel() }()
		if _, err := p.Do(ctx, []*replica.Replica{r}, &Job{Op: OpText, Model: "m", Text: "x"}); kind(err) != "cancelled" {
			t.Errorf("%s: %v, want cancelled", name, err)
		}
		select {
		case <-gone:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the connection is still open", name)
		}
	}
}

// Connections serve questions one after the other, and are closed when the pool ends.
func TestConnectionsAreKeptAndClosedAtTheEnd(t *testing.T) {
	var opened, closed atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"count":1,"tokens":[7]}`) }))
	ended := make(chan struct{}, 8)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed.Add(1)
			ended <- struct{}{}
		case http.StateActive, http.StateIdle, http.StateHijacked:
		}
	}
	s.Start()
	defer s.Close()
	r := &replica.Replica{ID: "a", URL: s.URL, State: replica.StateReady, Version: "0.17.0"}
	cfg := DefaultConfig()
	cfg.Timeout = time.Minute
	p := New(cfg, Params{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for range 6 { // fewer than it takes to learn how long an answer may take
		if _, err := ask(t, p, []*replica.Replica{r}); err != nil {
			t.Fatal(err)
		}
	}
	if opened.Load() != 1 || closed.Load() != 0 {
		t.Errorf("%d connections for 6 questions after each other, %d closed", opened.Load(), closed.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the connection outlives the pool")
	}
}
