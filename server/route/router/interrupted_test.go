package router_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// Each stream that loses its replica is counted by kind, cause and result, also one that was not followed.
func TestInterruptedStreamsAreCounted(t *testing.T) {
	const unfollowed = asking + `,"presence_penalty":1}`
	dead := `data: {"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}` + "\n\n"
	var reads context.Context // ends when the client has something
	later := func(pieces ...string) http.HandlerFunc {
		return streaming(hello(), func(w http.ResponseWriter, _ *http.Request) {
			<-reads.Done()
			io.WriteString(w, strings.Join(pieces, ""))
		})
	}
	for name, c := range map[string]struct {
		body                string
		steps               []http.HandlerFunc
		kind, cause, result string
		counted             string // as the result of a stream that ended early
	}{
		"continued":                    {asking + "}", []http.HandlerFunc{streaming(hello(), cut), whole(world())}, "chat", "broken", "continued", "resumed"},
		"an error in the stream":       {asking + "}", []http.HandlerFunc{later(dead, end), whole(world())}, "chat", "error", "continued", "resumed"},
		"an abort":                     {asking + "}", []http.HandlerFunc{later(event("chat", "one", "", "[]", "abort"), end), whole(world())}, "chat", "aborted", "continued", "resumed"},
		"lost":                         {unfollowed, []http.HandlerFunc{streaming(hello(), cut)}, "chat", "broken", "lost", "ineligible"},
		"an unfollowed stream errs":    {unfollowed, []http.HandlerFunc{later(dead, end)}, "chat", "error", "lost", "ineligible"},
		"an unfollowed one is aborted": {unfollowed, []http.HandlerFunc{later(event("chat", "one", "", "null", "abort"), end)}, "chat", "aborted", "lost", "ineligible"},
		"another answer is repeated": {
			`{"model":"m","stream":true,"temperature":0,"presence_penalty":1,"messages":[{"role":"user","content":"hi"}]}`,
			[]http.HandlerFunc{streaming(hello(), cut), whole([]string{role, event("chat", "two", "Good morning", "null", "stop"), end})}, "repeated", "diverged", "lost", "diverged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			reader := sdk.NewManualReader()
			f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				p.Scope = scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))
			})
			f.resuming(1)
			f.inTurn(c.steps...)
			var read context.CancelFunc
			reads, read = context.WithCancel(t.Context())
			to := &client{onWrite: func([]byte) error { read(); return nil }}
			err := f.router.Serve(t.Context(), chat(c.body), to)
			if err != nil && c.result == "continued" {
				t.Fatalf("Serve() = %v", err)
			}
			f.settled()
			got := []map[string]int64{
				countsBy(t, reader, "kvpilot.router.interrupted", "kind"), countsBy(t, reader, "kvpilot.router.interrupted", "cause"),
				countsBy(t, reader, "kvpilot.router.interrupted", "result"), countsBy(t, reader, "kvpilot.router.resumes", "result"),
			}
			want := []map[string]int64{{c.kind: 1}, {c.cause: 1}, {c.result: 1}, {c.counted: 1}}
			if c.cause == "diverged" { // it was continued before
				want = []map[string]int64{{c.kind: 2}, {c.cause: 1, "broken": 1}, {c.result: 1, "continued": 1}, {c.counted: 1, "resumed": 1}}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("counted %v, want %v", got, want)
			}
		})
	}
}
