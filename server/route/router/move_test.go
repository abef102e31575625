package router_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// writer is a replica that writes a chat stream until it is left, or has written its last token.
type writer struct {
	prompt string // its ids
	wrote  atomic.Int64
	left   atomic.Bool
	// last is the number of the last token; 0: there is none.
	last atomic.Int64
}

func (w *writer) chunk(api, id string, n int64, ids string) string {
	finish := "null"
	if n == w.last.Load() {
		finish = "stop"
	}
	return event(api, id, fmt.Sprintf("t%d ", n), ids, finish)
}

func (w *writer) head(ids string) string {
	return strings.Replace(role, "[1,2,3,4]", ids, 1)
}

// answer writes tokens from 1 on.
func (w *writer) answer(out http.ResponseWriter, r *http.Request) {
	streaming([]string{w.head(w.prompt)}, nil)(out, r)
	for n := int64(1); ; n++ {
		select {
		case <-r.Context().Done():
			w.left.Store(true)
			return
		case <-time.After(time.Millisecond): // a decode step
		}
		io.WriteString(out, w.chunk("chat", "one", n, fmt.Sprintf("[%d]", n)))
		out.(http.Flusher).Flush()
		if w.wrote.Store(n); n == w.last.Load() {
			io.WriteString(out, end)
			return
		}
	}
}

var (
	promptMember = regexp.MustCompile(`"prompt":\[([0-9,]*)\]`)
	limitMember  = regexp.MustCompile(`"max_tokens":([0-9]+)`)
)

// asked is what a continuation asks for: how many tokens of the answer it has, and how many it wants.
func (w *writer) asked(t *testing.T, body string) (has, wants int64) {
	prompt, limit := promptMember.FindStringSubmatch(body), limitMember.FindStringSubmatch(body)
	if prompt == nil || limit == nil {
		t.Errorf("no continuation: %s", body)
		return 0, 0
	}
	wants, _ = strconv.ParseInt(limit[1], 10, 64)
	return int64(strings.Count(prompt[1], ",") - strings.Count(w.prompt, ",")), wants
}

// rest continues the answer after so many tokens with n more, the last of which ends it unless it is the only one.
func (w *writer) rest(out http.ResponseWriter, after, n int64) {
	if n > 1 {
		w.last.Store(after + n)
	}
	out.Header().Set("Content-Type", "text/event-stream")
	for i := after + 1; i <= after+n; i++ {
		io.WriteString(out, w.chunk("text", "two", i, fmt.Sprintf("[%d]", i)))
		out.(http.Flusher).Flush()
	}
	io.WriteString(out, end)
}

// want is what the client gets of the whole stream.
func (w *writer) want() string {
	all := w.head("null")
	for n := int64(1); n <= w.last.Load(); n++ {
		all += w.chunk("chat", "one", n, "null")
	}
	return all + end
}

// leaving serves the stream of w, leaves its replica as soon as the client has a token, and has the other one answer with next.
func (w *writer) leaving(t *testing.T, prompt int, next func(out http.ResponseWriter, r *http.Request, body string)) *fleet {
	t.Helper()
	f := start(t, 2, nil)
	f.resuming(1)
	ids := slices.Repeat([]string{"7"}, prompt)
	w.prompt = "[" + strings.Join(ids, ",") + "]"
	for _, e := range f.engines {
		e.tokenizes(text(200, fmt.Sprintf(`{"count":%d,"max_model_len":131072,"tokens":%s}`, prompt, w.prompt)))
	}
	f.script(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
		case r.URL.Path == "/v1/chat/completions":
			w.answer(out, r)
		default:
			next(out, r, string(body))
		}
	})
	to := &client{}
	to.onWrite = func([]byte) error {
		for _, r := range f.params.Registry.Snapshot().Replicas {
			if string(r.ID) == to.header.Get("X-Kvpilot-Replica") {
				f.left.Store(r.ID, true)
			}
		}
		return nil
	}
	if err := f.router.Serve(t.Context(), chat(strings.Replace(asking, `"max_tokens":9`, `"max_tokens":90000`, 1)+"}"), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if got := to.body.String(); got != w.want() {
		t.Errorf("the client got %d bytes, %d wanted, ending\n%s", len(got), len(w.want()), got[max(0, len(got)-500):])
	}
	f.settled()
	return f
}

// The replica that is left is read and kept until the next one has sent its first token.
func TestAStreamMovesBeforeItsConnectionEnds(t *testing.T) {
	w := &writer{}
	var calls atomic.Int64
	f := w.leaving(t, 4, func(out http.ResponseWriter, _ *http.Request, body string) {
		calls.Add(1)
		wrote := w.wrote.Load()
		for w.wrote.Load() < wrote+5 { // it writes on
			time.Sleep(time.Millisecond)
		}
		if w.left.Load() {
			t.Error("the first replica was left before the next one sent anything")
		}
		has, _ := w.asked(t, body)
		w.rest(out, has, 500) // more than the first replica writes until it is left
	})
	f.eventually("the replica is left", w.left.Load)
	if n := calls.Load(); n != 1 {
		t.Errorf("the other replica got %d requests, want 1", n)
	}
	if ends := f.ends(); !slices.Equal(ends, []decision.End{decision.EndResumed, decision.EndCompleted}) {
		t.Errorf("the decisions ended %v", ends)
	}
}

// A long context is computed while the stream continues where it is, so that the client waits for a step and not for a prefill.
func TestALongContextIsComputedBeforeTheStreamMoves(t *testing.T) {
	w := &writer{}
	var mu sync.Mutex
	var bodies []string
	w.leaving(t, 3000, func(out http.ResponseWriter, _ *http.Request, body string) {
		mu.Lock()
		bodies = append(bodies, body)
		first := len(bodies) == 1
		mu.Unlock()
		has, wants := w.asked(t, body)
		if !first {
			w.rest(out, has, 500) // more than the first replica writes until it is left
			return
		}
		wrote := w.wrote.Load()
		for w.wrote.Load() < wrote+20 {
			time.Sleep(time.Millisecond)
		}
		if wants != 1 {
			t.Errorf("the context is computed with %d tokens, want 1", wants)
		}
		w.rest(out, has, 1)
	})
	if len(bodies) != 2 {
		t.Fatalf("the other replica got %d requests, want 2", len(bodies))
	}
	early, _ := w.asked(t, bodies[0])
	late, wants := w.asked(t, bodies[1])
	if late < early+15 || wants < 2 {
		t.Errorf("the stream had %d tokens when its context was computed and %d when it moved, which asks for %d", early, late, wants)
	}
}

// A stream that no other replica takes stays where it is.
func TestAMoveThatFailsCostsNothing(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]http.HandlerFunc{
		"it refuses":              text(503, `{"error":{"message":"no"}}`),
		"it rejects":              text(400, `{"error":{"message":"no"}}`),
		"it hangs":                func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"it breaks":               cut,
		"it is no stream":         text(200, `{"choices":[]}`, "Content-Type", "application/json"),
		"it breaks at the start":  streaming(nil, cut),
		"it ends without a token": streaming(nil, nil),
	} {
		t.Run(name, func(t *testing.T) {
			for _, prompt := range []int{4, 3000} {
				w := &writer{}
				f := w.leaving(t, prompt, func(out http.ResponseWriter, r *http.Request, _ string) {
					defer func() { w.last.CompareAndSwap(0, w.wrote.Load()+100) }()
					if prompt > warmAbove && name == "it hangs" {
						return // what a context may take is not tested here
					}
					r.Body = http.NoBody
					step(out, r)
				})
				if w.left.Load() {
					t.Error("the replica was left")
				}
				if ends := f.ends(); !slices.Contains(ends, decision.EndCompleted) || slices.Contains(ends, decision.EndResumed) {
					t.Errorf("the decisions ended %v", ends)
				}
			}
		})
	}
}

// warmAbove is above which length a context is computed first.
const warmAbove = 2048
