package router_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// picky is an engine that rejects members that it does not know; it says so with the status and the words.
func picky(status int, words string, asked *atomic.Int64, then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if bytes.Contains(body, []byte("return_token_ids")) {
			asked.Add(1)
			text(status, words)(w, r)
			return
		}
		then(w, r)
	}
}

// An engine that rejects the member that the router adds answers the client's request all the same, and is not asked for ids again.
func TestAnEngineWithAStrictBodyIsAskedWithoutIDs(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		words  string
	}{
		"it names the member":   {422, `{"detail":[{"type":"extra_forbidden","loc":["body","return_token_ids"]}]}`},
		"it does not name it":   {400, `{"error":{"message":"invalid body"}}`},
		"it rejects as in Rust": {400, "unknown field `return_token_ids`"},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			var asked, answered atomic.Int64
			all := []string{event("chat", "one", "Hello", "null", "null"), event("chat", "one", "!", "null", "stop"), end}
			f.script(picky(c.status, c.words, &asked, func(w http.ResponseWriter, r *http.Request) {
				answered.Add(1)
				whole(all)(w, r)
			}))
			for n := range int64(6) {
				to := &client{}
				if err := f.router.Serve(t.Context(), chat(asking+"}"), to); err != nil || to.status != 200 || to.body.String() != strings.Join(all, "") {
					t.Fatalf("Serve() = %v, %d, %s", err, to.status, &to.body)
				}
				if answered.Load() != n+1 {
					t.Fatalf("%d answers to %d requests", answered.Load(), n+1)
				}
			}
			if got := asked.Load(); got < 1 || got > 2 {
				t.Errorf("two engines were asked for ids %d times, want once each at most", got)
			}
			f.settled()
		})
	}
}

// What an engine says of the client's own request reaches the client, and costs the engine one more request until it has answered one.
func TestAFaultOfTheClientIsNotTakenForAStrictBody(t *testing.T) {
	f := start(t, 2, nil)
	const words = `{"error":{"message":"temperature must be positive","code":400}}`
	f.script(text(400, words))
	serve := func() {
		t.Helper()
		err := f.router.Serve(t.Context(), chat(asking+"}"), &client{})
		if e := apierror.From(err); e == nil || e.HTTPStatus() != 400 || reasonOf(err) != apierror.InvalidBody {
			t.Fatalf("Serve() = %v, want the engine's 400", err)
		}
	}
	serve()
	if n := f.requests(); n != 2 {
		t.Errorf("an engine that is not known got %d requests, want 2", n)
	}
	f.script(whole(append(hello(), event("chat", "one", "!", "[12]", "stop"), end)))
	for f.engines[0].requests() < 4 || f.engines[1].requests() < 4 { // both have answered
		if err := f.router.Serve(t.Context(), chat(asking+"}"), &client{}); err != nil {
			t.Fatal(err)
		}
		if f.requests() > 200 {
			t.Fatal("one engine gets all requests")
		}
	}
	before := f.requests()
	f.script(text(400, words))
	serve()
	if n := f.requests() - before; n != 1 {
		t.Errorf("an engine that has answered with ids got %d requests, want 1", n)
	}
	f.settled()
}

// A continuation on an engine that gives no ids has the counts of the whole request, from that engine's own.
func TestTheRestComesFromAnEngineWithoutIDs(t *testing.T) {
	f := start(t, 2, nil)
	var asked atomic.Int64
	usage := `data: {"id":"two","choices":[],"usage":{"prompt_tokens":6,"total_tokens":8,"completion_tokens":2}}` + "\n\n"
	rest := []string{event("text", "two", " wor", "null", "null"), event("text", "two", "ld", "null", "stop"), usage, end}
	broken := streaming(hello(), cut)
	var turn atomic.Int64
	f.script(func(w http.ResponseWriter, r *http.Request) {
		if turn.Add(1) == 1 {
			broken(w, r)
			return
		}
		picky(400, "return_token_ids?", &asked, whole(rest))(w, r)
	})
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(asking+`,"stream_options":{"include_usage":true}}`), to); err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	got := to.body.String()
	if !strings.HasPrefix(got, strings.TrimSuffix(helloWorld(), end)) || !strings.Contains(got, `"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4}`) || !strings.HasSuffix(got, end) || asked.Load() != 1 {
		t.Errorf("the client got\n%s", got)
	}
	f.settled()
}

func TestStreamsAreResumedByDefault(t *testing.T) {
	if n := intake.DefaultConfig().ResumeStreams; n < 1 {
		t.Errorf("resume_streams is %d", n)
	}
}
