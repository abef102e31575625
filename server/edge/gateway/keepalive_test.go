package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// taker is a ResponseWriter that notes when its client got something.
type taker struct {
	*httptest.ResponseRecorder
	began time.Time
	at    []time.Duration
	gone  bool
}

func newTaker() *taker {
	return &taker{ResponseRecorder: httptest.NewRecorder(), began: time.Now()}
}

func (w *taker) Write(p []byte) (int, error) {
	if w.gone {
		return 0, errors.New("the connection is closed")
	}
	w.at = append(w.at, time.Since(w.began))
	return w.ResponseRecorder.Write(p)
}

func (w *taker) SetReadDeadline(time.Time) error  { return nil }
func (w *taker) SetWriteDeadline(time.Time) error { return nil }

// ask answers a chat request with handle.
func (w *taker) ask(t *testing.T, path string, handle func(to intake.Sink) error, options ...option) {
	g := newHandler(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, _ bodies) error { return handle(e.Answer) }}, options...)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{}`))
	r.Header.Set("Content-Type", "application/json")
	g.ServeHTTP(w, r)
}

const (
	chatPath = "/v1/chat/completions"
	kept     = ": keep-alive\n\n"
)

var events = http.Header{"Content-Type": {"text/event-stream"}, "X-Kvpilot-Replica": {"r"}}

func await(to intake.Sink) { to.(intake.Awaiter).Await() }

func wait(d time.Duration) { time.Sleep(d) } // in a bubble

func TestAClientThatWaitsGetsComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTaker()
		w.ask(t, chatPath, func(to intake.Sink) error {
			await(to)
			wait(40 * time.Second) // held
			if err := to.Begin(200, events.Clone()); err != nil {
				return err
			}
			for _, p := range []string{"data: 1\n\n", "data: 2\n", "\n"} {
				if err := to.Write([]byte(p)); err != nil {
					return err
				}
				wait(20 * time.Second)
			}
			return nil
		})
		if want := kept + kept + "data: 1\n\n" + kept + "data: 2\n\n" + kept; w.Body.String() != want || w.Code != 200 {
			t.Errorf("the client got %d %q, want %q", w.Code, w.Body, want)
		}
		for i, want := range []int{15, 30, 40, 55, 60, 80, 95} {
			if i >= len(w.at) || w.at[i] != time.Duration(want)*time.Second {
				t.Fatalf("the client got something after %v, want %d s at %d", w.at, want, i)
			}
		}
	})
}

func TestAnAnswerThatComesInTimeHasNoComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTaker()
		w.ask(t, chatPath, func(to intake.Sink) error {
			await(to)
			wait(14 * time.Second)
			return to.Begin(429, http.Header{"Content-Type": {"application/json"}})
		})
		wait(time.Minute)
		if w.Code != 429 || w.Body.Len() > 0 {
			t.Errorf("the client got %d %q", w.Code, w.Body)
		}
	})
}

// An error that follows a comment is the last event of the stream, in the words of the client's API.
func TestAnErrorBehindAComment(t *testing.T) {
	full := apierror.New(apierror.Overloaded, "the router's queue is full", nil, apierror.WithRetryAfter(time.Second))
	for path, want := range map[string]string{
		chatPath:       "\"message\":\"the router's queue is full\"",
		"/v1/messages": "event: error\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTaker()
			w.ask(t, path, func(to intake.Sink) error {
				await(to)
				wait(16 * time.Second)
				return full
			})
			if got := w.Body.String(); w.Code != 200 || !strings.HasPrefix(got, kept) || !strings.Contains(got, want) {
				t.Errorf("%s: the client got %d %q, want %s", path, w.Code, got, want)
			}
			if w.Header().Get("Retry-After") != "" || w.Header().Get("Content-Type") != "text/event-stream; charset=utf-8" {
				t.Errorf("%s: the head was %v", path, w.Header())
			}
		})
	}
}

func TestAnAnswerOfAnotherKindBehindAComment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTaker()
		w.ask(t, chatPath, func(to intake.Sink) error {
			await(to)
			wait(16 * time.Second)
			return to.Begin(200, http.Header{"Content-Type": {"application/json"}})
		})
		if got := w.Body.String(); !strings.Contains(got, `"code":"upstream_error"`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("the client got %q, want an error event", got)
		}
	})
}

func TestCommentsAreOff(t *testing.T) {
	for name, tc := range map[string]struct {
		every time.Duration
		begin func(intake.Sink) error
	}{
		"by the setting": {0, func(to intake.Sink) error { await(to); return nil }},
		"for what is no event stream": {15 * time.Second, func(to intake.Sink) error {
			await(to)
			return to.Begin(200, http.Header{"Content-Type": {"text/plain"}})
		}},
		"for what awaits nothing": {15 * time.Second, func(to intake.Sink) error { return to.Begin(200, events.Clone()) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTaker()
				w.ask(t, chatPath, func(to intake.Sink) error {
					err := tc.begin(to)
					wait(time.Minute)
					return errors.Join(err, to.Write([]byte("x\n\n")))
				}, func(c *gateway.Config, _ *gateway.Params) { c.SSEKeepAlive = tc.every })
				if w.Body.String() != "x\n\n" {
					t.Errorf("the client got %q", w.Body)
				}
			})
		})
	}
}

// A client that left gets no second comment, and no handler hangs.
func TestCommentsEndWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTaker()
		w.gone = true
		w.ask(t, chatPath, func(to intake.Sink) error {
			await(to)
			wait(time.Minute)
			return errors.New("canceled")
		})
		if len(w.at) > 0 {
			t.Errorf("the client got something at %v", w.at)
		}
	})
}

// Writers and comments use one connection: the race detector looks at them, and no comment is inside an event.
func TestCommentsBetweenEventsOverTheNetwork(t *testing.T) {
	seen := make(chan struct{}) // the client has a comment
	sent := 0
	url := start(t, &services{chat: func(e *httpcall.Call, _ *httpbody.HttpBody, _ bodies) error {
		await(e.Answer)
		if err := e.Answer.Begin(200, events.Clone()); err != nil {
			return err
		}
		for more := true; more || sent < 2000; sent++ {
			for _, p := range []string{"data: {\"a\":", "1}\n", "\n"} {
				if err := e.Answer.Write([]byte(p)); err != nil {
					return err
				}
			}
			select {
			case <-seen:
				more = false
			default:
			}
		}
		return nil
	}}, func(c *gateway.Config, _ *gateway.Params) { c.SSEKeepAlive = time.Nanosecond })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, comments := 0, 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		event := lines.Text()
		if lines.Scan(); lines.Text() != "" {
			t.Fatalf("%q is followed by %q", event, lines.Text())
		}
		switch event {
		case "data: {\"a\":1}":
			got++
		case strings.TrimSpace(kept):
			if comments++; comments == 1 {
				close(seen)
			}
		default:
			t.Fatalf("the client got %q", event)
		}
	}
	if err := lines.Err(); err != nil || got != sent || comments == 0 {
		t.Errorf("the client got %d of %d events and %d comments, %v", got, sent, comments, err)
	}
}
