package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// piece is a chat chunk of a choice; finish is its finish_reason, null when empty.
func piece(index int, text, finish string) string {
	reason := "null"
	if finish != "" {
		reason = `"` + finish + `"`
	}
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":%d,"delta":{"content":%q},"finish_reason":%s}]}`+"\n\n", index, text, reason)
}

func streamed(more string) *intake.Call {
	return chat(`{"model":"m","stream":true` + more + `,"messages":[{"role":"user","content":"hi"}]}`)
}

// TestAStreamWithoutDoneIsWhole: a stream that ends properly with each of its choices finished needs no [DONE].
func TestAStreamWithoutDoneIsWhole(t *testing.T) {
	for name, tc := range map[string]struct {
		call   *intake.Call
		pieces []string
		last   http.HandlerFunc
		whole  bool
	}{
		"one choice":                {streamed(""), []string{piece(0, "a", ""), piece(0, "b", "stop")}, nil, true},
		"with the usage":            {streamed(""), []string{piece(0, "a", "length"), `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\n"}, nil, true},
		"two choices":               {streamed(`,"n":2`), []string{piece(0, "a", "stop"), piece(1, "b", "stop")}, nil, true},
		"one of two choices":        {streamed(`,"n":2`), []string{piece(0, "a", "stop"), piece(1, "b", "")}, nil, false},
		"no finish":                 {streamed(""), []string{piece(0, "a", "")}, nil, false},
		"cut behind the finish":     {streamed(""), []string{piece(0, "a", "stop")}, cut, false},
		"a batch of two prompts":    {batch(), []string{piece(0, "a", "stop"), piece(1, "b", "stop")}, nil, true},
		"one of a batch":            {batch(), []string{piece(0, "a", "stop")}, nil, false},
		"a format that is no one's": {&intake.Call{Route: openai.RouteOther, Method: http.MethodPost, Path: "/v3/new", Body: []byte(`{"model":"m"}`), Header: http.Header{}}, []string{"data: {}\n\n"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.script(streaming(tc.pieces, tc.last))
			to := &client{}
			err := f.router.Serve(t.Context(), tc.call, to)
			if (err == nil) != tc.whole || to.body.String() != strings.Join(tc.pieces, "") {
				t.Errorf("Serve() = %v, want it whole: %v; the client got %q", err, tc.whole, &to.body)
			}
			f.settled()
			if ends := f.ends(); len(ends) != 1 || (ends[0] == decision.EndCompleted) != tc.whole {
				t.Errorf("the decision ended %v", ends)
			}
		})
	}
}

func batch() *intake.Call {
	c := chat(`{"model":"m","stream":true,"prompt":["a","b"]}`)
	c.Route = openai.RouteCompletions
	return c
}

// TestAClientThatHasDoneHasTheAnswer: SDKs close the connection as soon as they have read [DONE].
func TestAClientThatHasDoneHasTheAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		leaves string // the client leaves when it has got this
		last   http.HandlerFunc
		want   decision.End
	}{
		"behind [DONE]":                     {"[DONE]", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, decision.EndCompleted},
		"in front of it":                    {`"b"`, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, decision.EndCanceled},
		"it stays, and the replica cuts it": {"never", cut, decision.EndCompleted},
		"more comes behind it": {"[DONE]", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, ": bye\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, decision.EndCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			pieces := []string{piece(0, "a", ""), piece(0, "b", "stop"), "data: [DONE]\n\n"}
			if tc.want == decision.EndCanceled {
				pieces = pieces[:2]
			}
			f.script(streaming(pieces, tc.last))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			to := &client{}
			to.onWrite = func(p []byte) error {
				if ctx.Err() != nil {
					return errors.New("the connection is closed")
				}
				if strings.Contains(string(p), tc.leaves) {
					time.AfterFunc(20*time.Millisecond, leave)
				}
				return nil
			}
			err := f.router.Serve(ctx, streamed(""), to)
			f.settled()
			if ends := f.ends(); len(ends) != 1 || ends[0] != tc.want || (err == nil) != (tc.want == decision.EndCompleted) {
				t.Errorf("Serve() = %v, the decision ended %v; want %v", err, ends, tc.want)
			}
		})
	}
}

// TestAnErrorInsideAStreamIsNoSuccess: the engine's error object is the client's, once, and the decision failed.
func TestAnErrorInsideAStreamIsNoSuccess(t *testing.T) {
	const told = `data: {"error":{"message":"CUDA error","type":"InternalServerError","param":null,"code":500}}` + "\n\n"
	for name, pieces := range map[string][]string{
		"with [DONE]":           {piece(0, "a", ""), told, "data: [DONE]\n\n"},
		"without":               {piece(0, "a", ""), told},
		"as the first event":    {told, "data: [DONE]\n\n"},
		"in the last piece":     {piece(0, "a", "stop"), told + "data: [DONE]\n\n"},
		"all in a single piece": {piece(0, "a", "") + told + "data: [DONE]\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.script(streaming(pieces, nil))
			to := &client{}
			if err := f.router.Serve(t.Context(), streamed(""), to); err != nil || to.body.String() != strings.Join(pieces, "") {
				t.Errorf("Serve() = %v, want the engine's words alone; the client got %q", apierror.From(err), &to.body)
			}
			f.settled()
			if ends := f.ends(); len(ends) != 1 || ends[0] != decision.EndFailed {
				t.Errorf("the decision ended %v, want failed", ends)
			}
		})
	}
}
