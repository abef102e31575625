package router_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

const (
	doneMark = "data: [DONE]\n\n"
	roleOnly = `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	usageOne = `data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}` + "\n\n"
)

// metered is a fleet whose metrics can be read.
func metered(t *testing.T, n int, change func(*router.Params)) (*fleet, *sdk.ManualReader) {
	reader := sdk.NewManualReader()
	return start(t, n, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
		p.Scope = scope.Measured(sdk.NewMeterProvider(sdk.WithReader(reader)))
		if change != nil {
			change(p)
		}
	}), reader
}

func results(t *testing.T, reader *sdk.ManualReader) string {
	got := countsBy(t, reader, "kvpilot.router.empty_answers", "result")
	return fmt.Sprintf("%d retried, %d agreed, %d passed", got["retried"], got["agreed"], got["passed"])
}

// An empty stream was a success, and the client got it.
func TestAnEmptyAnswerIsRetriedElsewhere(t *testing.T) {
	full := []string{piece(0, "a", ""), piece(0, "b", "stop"), doneMark}
	object := `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"}]}`
	for name, tt := range map[string]struct {
		more         string
		empty, whole http.HandlerFunc
		want         string
	}{
		"only [DONE]":                   {"", whole([]string{doneMark}), whole(full), strings.Join(full, "")},
		"[DONE] in pieces":              {"", whole([]string{"da", "ta: [DO", "NE]\n\n"}), whole(full), strings.Join(full, "")},
		"[DONE] and no end":             {"", streaming([]string{doneMark}, silent), whole(full), strings.Join(full, "")},
		"a role and [DONE]":             {"", whole([]string{roleOnly + doneMark}), whole(full), strings.Join(full, "")},
		"an object of nothing":          {"unstreamed", text(200, ""), text(200, object), object},
		"no choices":                    {"unstreamed", text(200, `{"id":"c","choices": [ ]}`), text(200, object), object},
		"no choices, of unknown length": {"unstreamed", inPieces(`{"id":"c","choices":[]}`), text(200, object), object},
	} {
		t.Run(name, func(t *testing.T) {
			f, reader := metered(t, 2, nil)
			f.inTurn(tt.empty, tt.whole)
			to, call := &client{}, streamed("")
			if tt.more != "" {
				call = chat("")
			}
			if err := f.router.Serve(t.Context(), call, to); err != nil {
				t.Fatal(err)
			}
			if to.status != 200 || to.body.String() != tt.want {
				t.Errorf("the client got %d %q, want the other replica's answer", to.status, &to.body)
			}
			if a, b := f.engines[0].requests(), f.engines[1].requests(); a != 1 || b != 1 {
				t.Errorf("the engines got %d and %d requests, want one each", a, b)
			}
			f.settled()
			if ends := f.ends(); len(ends) != 2 || ends[0] != decision.EndMoved || ends[1] != decision.EndCompleted {
				t.Errorf("the decisions ended %v", ends)
			}
			if got := results(t, reader); got != "1 retried, 0 agreed, 0 passed" {
				t.Error(got)
			}
		})
	}
}

// inPieces is a step that sends an object whose length is not told.
func inPieces(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for _, c := range body {
			io.WriteString(w, string(c))
			w.(http.Flusher).Flush()
		}
	}
}

// Answers that may well be right are passed on at once.
func TestAnswersWithoutTextThatMayBeRightAreNotRetried(t *testing.T) {
	for name, pieces := range map[string][]string{
		"an immediate stop":            {roleOnly, piece(0, "", "stop"), doneMark},
		"all of it in one piece":       {roleOnly + piece(0, "", "stop") + doneMark},
		"no content, but usage":        {usageOne, doneMark},
		"usage and nothing else":       {usageOne + doneMark},
		"a tool is called":             {`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}` + "\n\n" + doneMark},
		"text without a finish reason": {piece(0, "a", "") + doneMark},
		"a comment first":              {": wait\n\n", piece(0, "a", "stop"), doneMark},
	} {
		t.Run(name, func(t *testing.T) {
			f, reader := metered(t, 2, nil)
			f.script(whole(pieces))
			to := &client{}
			if err := f.router.Serve(t.Context(), streamed(""), to); err != nil {
				t.Fatal(err)
			}
			want := strings.TrimPrefix(strings.Join(pieces, ""), ": wait\n\n") // comments in front of the first event are dropped
			if to.body.String() != want || f.requests() != 1 {
				t.Errorf("%d requests; the client got %q", f.requests(), &to.body)
			}
			if got := results(t, reader); got != "0 retried, 0 agreed, 0 passed" {
				t.Error(got)
			}
			f.settled()
		})
	}
}

// A request to which every replica answers nothing is answered so, and nothing is held against any of them.
func TestAnEmptyAnswerOfTwoReplicasIsTheRequestsDoing(t *testing.T) {
	f, reader := metered(t, 3, nil)
	f.script(whole([]string{doneMark}))
	for range 10 {
		to := &client{}
		if err := f.router.Serve(t.Context(), streamed(""), to); err != nil || to.status != 200 || to.body.String() != doneMark {
			t.Fatalf("Serve() = %v, the client got %d %q", err, to.status, &to.body)
		}
	}
	if n := f.requests(); n != 20 {
		t.Errorf("%d requests for ten calls, want two each", n)
	}
	if got := results(t, reader); got != "0 retried, 10 agreed, 0 passed" {
		t.Error(got)
	}
	for _, r := range f.chooser.Rates() {
		if r.Conduct.Suspicions != 0 || r.Conduct.EmptyShare != 0 {
			t.Errorf("%s is held to be %+v", r.Replica, r.Conduct)
		}
	}
	f.settled()
}

// Where no other replica can be asked, the client gets what there is.
func TestAnEmptyAnswerIsPassedOnWhenNoOtherReplicaAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		replicas int
		second   http.HandlerFunc
		budget   retry.Config
		call     func(*intake.Call)
		want     string
	}{
		"alone":                       {replicas: 1, want: "0 retried, 0 agreed, 0 passed"},
		"the others are out of order": {replicas: 2, second: cut, want: "0 retried, 0 agreed, 1 passed"},
		"the others reject":           {replicas: 2, second: text(429, "{}"), want: "0 retried, 0 agreed, 1 passed"},
		"pinned":                      {replicas: 2, call: func(c *intake.Call) { c.Options.Pinned = "r0" }, want: "0 retried, 0 agreed, 0 passed"},
	} {
		t.Run(name, func(t *testing.T) {
			f, reader := metered(t, tt.replicas, nil)
			second := tt.second
			if second == nil {
				second = whole([]string{doneMark})
			}
			f.inTurn(whole([]string{doneMark}), second)
			to, call := &client{}, streamed("")
			if tt.call != nil {
				tt.call(call)
			}
			if err := f.router.Serve(t.Context(), call, to); err != nil || to.status != 200 || to.body.String() != doneMark {
				t.Errorf("Serve() = %v, the client got %d %q", err, to.status, &to.body)
			}
			if got := results(t, reader); got != tt.want {
				t.Error(got)
			}
			f.settled()
		})
	}
}

// A budget of retries that is spent costs no answer.
func TestAnEmptyAnswerIsPassedOnWhenTheBudgetIsSpent(t *testing.T) {
	f, reader := metered(t, 2, func(p *router.Params) {
		p.Budget = retry.NewBudget(retry.Config{Attempts: 3})
		for p.Budget.Withdraw() {
		}
	})
	f.script(whole([]string{doneMark}))
	to := &client{}
	if err := f.router.Serve(t.Context(), streamed(""), to); err != nil || to.body.String() != doneMark || to.header.Get("X-Kvpilot-Replica") == "" {
		t.Errorf("Serve() = %v, the client got %q with %v", err, &to.body, to.header)
	}
	if got := results(t, reader); got != "0 retried, 0 agreed, 1 passed" || f.requests() != 1 {
		t.Errorf("%s, %d requests", got, f.requests())
	}
	f.settled()
}

// A replica that gives empty streams kept a third of the traffic and counted as one that answers.
func TestAReplicaThatGivesEmptyStreamsLosesItsTraffic(t *testing.T) {
	f, _ := metered(t, 3, nil)
	f.engines[0].does(whole([]string{doneMark}))
	for _, e := range f.engines[1:] {
		e.does(whole([]string{piece(0, "a", ""), piece(0, "b", "stop"), doneMark}))
	}
	const calls = 60
	for i := range calls {
		to := &client{}
		if err := f.router.Serve(t.Context(), streamed(fmt.Sprintf(`,"seed":%d`, i)), to); err != nil || !strings.Contains(to.body.String(), `"a"`) {
			t.Fatalf("call %d: %v, the client got %q", i, err, &to.body)
		}
		time.Sleep(5 * time.Millisecond) // the ranks are judged a few times a second
	}
	if n := f.engines[0].requests(); n > calls/3 {
		t.Errorf("the replica got %d of %d requests", n, calls)
	}
	held := map[replica.ID]conduct.Suspicion{}
	for _, r := range f.chooser.Rates() {
		held[r.Replica] = r.Conduct.Suspicions
	}
	if held["r0"] != conduct.Empty || held["r1"]|held["r2"] != 0 {
		t.Errorf("held against them are %v", held)
	}
	f.settled()
}
