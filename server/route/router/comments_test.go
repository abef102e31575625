package router_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// alive is the comment that vLLM sends while it has nothing else to send.
const alive = ": keep-alive\n\n"

// Comments of the first replica, and of the one that continues, cost no stream.
func TestAStreamWithCommentsIsResumed(t *testing.T) {
	for name, c := range map[string]struct {
		first, second []string
		comments      int // that the client gets
	}{
		"in front of the first event":       {append([]string{alive}, hello()...), world(), 0},
		"in the middle":                     {[]string{hello()[0], alive, hello()[1], alive, hello()[2], alive}, world(), 3},
		"in one piece with an event":        {[]string{hello()[0], alive + hello()[1] + alive + hello()[2]}, world(), 2},
		"cut":                               {[]string{hello()[0], ": keep", "-alive\n\n" + hello()[1], hello()[2]}, world(), 1},
		"of the replica that continues":     {hello(), append([]string{alive, alive}, world()...), 0},
		"in the middle of the continuation": {hello(), []string{world()[0], alive, world()[1], alive + end}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			f.inTurn(streaming(c.first, cut), whole(c.second))
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil {
				t.Fatalf("Serve() = %v", err)
			}
			if got := to.body.String(); strings.ReplaceAll(got, alive, "") != helloWorld() || strings.Count(got, alive) != c.comments {
				t.Errorf("the client got\n%s\nwant, with %d comments,\n%s", got, c.comments, helloWorld())
			}
			f.settled()
		})
	}
}

// A replica that sent comments alone has begun no answer: another one gives it.
func TestCommentsBeginNoAnswer(t *testing.T) {
	for name, ask := range map[string]*intake.Call{
		"followed": chat(asking + "}"), "not followed": chat(asking + `,"tools":[{"type":"function"}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			pieces := []string{piece(0, "a", ""), piece(0, "b", "stop"), end}
			f.inTurn(streaming([]string{alive, alive}, cut), whole(pieces))
			to := &client{}
			if err := f.router.Serve(t.Context(), ask, to); err != nil || to.body.String() != strings.Join(pieces, "") {
				t.Errorf("Serve() = %v, the client got %q", err, &to.body)
			}
			f.settled()
		})
	}
}

// aborted is the end of a stream of chat or completions that a paused engine sends.
func aborted(api string) []string {
	return []string{event(api, "one", "", "[]", "abort"), `data: {"id":"one","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}` + "\n\n", end}
}

func TestAnAbortedStreamIsResumed(t *testing.T) {
	for name, first := range map[string][]string{
		"in pieces":    append(hello(), aborted("chat")...),
		"in one piece": {strings.Join(append(hello(), aborted("chat")...), "")},
		"at once":      {strings.Join(aborted("chat"), "")},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			second, want := world(), helloWorld()
			if name == "at once" { // then the other replica gives the whole answer
				second = append(append(hello(), event("chat", "one", " world", "[12]", "stop")), end)
				want = strings.NewReplacer("[1,2,3,4]", "null", "[10]", "null", "[11]", "null", "[12]", "null").Replace(strings.Join(second, ""))
			}
			f.inTurn(whole(first), whole(second))
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil || to.body.String() != want {
				t.Errorf("Serve() = %v, the client got\n%s\nwant\n%s", err, &to.body, want)
			}
			f.settled()
		})
	}
}

// An aborted stream that cannot be resumed ends with an error, and never with the engine's own end.
func TestAnAbortedStreamIsNoSuccess(t *testing.T) {
	message := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	messages := []string{
		message("message_start", `{"type":"message_start","message":{"stop_reason":null}}`),
		message("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}`),
		message("message_delta", `{"type":"message_delta","delta":{"stop_reason":null}}`),
		message("message_stop", `{"type":"message_stop"}`),
	}
	anthropic := func() *intake.Call {
		c := chat(`{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`)
		c.Route, c.Path = openai.RouteMessages, "/v1/messages"
		return c
	}
	for name, c := range map[string]struct {
		call   *intake.Call
		pieces []string
		want   string
	}{
		"chat":         {chat(asking + `,"tools":[{"type":"function"}]}`), append(hello(), aborted("chat")...), strings.Join(hello(), "")},
		"in one piece": {chat(asking + `,"tools":[{"type":"function"}]}`), []string{hello()[0], hello()[1] + strings.Join(aborted("chat"), "")}, hello()[0] + hello()[1]},
		"messages":     {anthropic(), messages, strings.Join(messages[:3], "")},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			f.resuming(1)
			begun, begin := context.WithCancel(t.Context())
			f.script(streaming(c.pieces[:1], func(w http.ResponseWriter, r *http.Request) {
				<-begun.Done()
				io.WriteString(w, strings.Join(c.pieces[1:], ""))
			}))
			to := &client{onWrite: func([]byte) error { begin(); return nil }}
			err := f.router.Serve(t.Context(), c.call, to)
			if e := apierror.From(err); e == nil || e.Reason != apierror.UpstreamStreamBroken || !strings.Contains(e.Message, "aborted") {
				t.Errorf("Serve() = %v, want an error about the abort", err)
			}
			if to.body.String() != c.want {
				t.Errorf("the client got\n%s\nwant\n%s", &to.body, c.want)
			}
			f.settled()
		})
	}
}

// An answer that is not streamed is asked for again: the client has nothing of it.
func TestAnAbortedAnswerIsRetried(t *testing.T) {
	for name, route := range map[string]openai.Route{
		`{"id":"c","choices":[{"index":0,"message":{"content":"Hel"},"finish_reason":"abort"}]}`:  openai.RouteChat,
		`{"id":"m","type":"message","content":[{"type":"text","text":"Hel"}],"stop_reason":null}`: openai.RouteMessages,
	} {
		t.Run(route.String(), func(t *testing.T) {
			for _, length := range []bool{true, false} {
				f := start(t, 2, nil)
				answer := text(200, name)
				if !length {
					answer = func(w http.ResponseWriter, r *http.Request) {
						io.Copy(io.Discard, r.Body)
						w.Header().Set("Content-Type", "application/json")
						io.WriteString(w, name[:20])
						w.(http.Flusher).Flush()
						io.WriteString(w, name[20:])
					}
				}
				f.inTurn(answer, text(200, `{"whole":true}`))
				call := chat(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`)
				call.Route, call.Path = route, route.Path()
				to := &client{}
				if err := f.router.Serve(t.Context(), call, to); err != nil || to.body.String() != `{"whole":true}` {
					t.Errorf("Serve() = %v, the client got %s", err, &to.body)
				}
				f.script(answer) // every replica is paused
				to = &client{}
				if e := apierror.From(f.router.Serve(t.Context(), call, to)); e == nil || e.Reason != apierror.UpstreamStreamBroken || to.body.Len() > 0 {
					t.Errorf("Serve() = %v, the client got %s", e, &to.body)
				}
				f.settled()
			}
		})
	}
}

// waiting is a Sink that keeps its client's connection open.
type waiting struct {
	client
	awaits int
}

func (w *waiting) Await() { w.awaits++ }

func TestOnlyStreamsAreAwaited(t *testing.T) {
	f := start(t, 1, nil)
	for name, c := range map[string]struct {
		call *intake.Call
		want int
	}{
		"a stream":         {streamed(""), 1},
		"no stream":        {chat(""), 0},
		"an unknown model": {chat(`{"model":"none","stream":true,"messages":[]}`), 0},
		"another route":    {&intake.Call{Route: openai.RouteOther, Method: http.MethodPost, Path: "/v3/new", Body: []byte(`{"model":"m","stream":true}`), Header: http.Header{}}, 0},
	} {
		to := &waiting{}
		_ = f.router.Serve(t.Context(), c.call, to) // some are refused
		if to.awaits != c.want {
			t.Errorf("%s: %d calls of Await, want %d", name, to.awaits, c.want)
		}
	}
}
