package router_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

func TestChoosingWithoutSending(t *testing.T) {
	f := start(t, 2, nil)
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7}`)
	dry, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: body, Route: openai.RouteChat}})
	must(t, err)
	if f.book.Live() != 0 || dry.Replica == nil || dry.Port == 0 || dry.Host == "" || !slices.Equal(dry.Encoding.IDs, []uint32{1, 2, 3, 4}) {
		t.Errorf("a question booked %d and answered %+v", f.book.Live(), dry)
	}
	booked, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: body, Route: openai.RouteChat}, Terms: intake.Terms{Booking: intake.Reserve}})
	must(t, err)
	if f.book.Live() != 1 || booked.Lease != time.Minute {
		t.Errorf("%d reservations with a lease of %v, want one of a minute", f.book.Live(), booked.Lease)
	}
	booked.Release(chooser.Result{})
	f.settled()
	for name, q := range map[string]*intake.Question{
		"ids":       {Model: "m", Input: intake.Input{IDs: []uint32{9, 8, 7}}},
		"a text":    {Model: "m", Input: intake.Input{Text: "once upon a time"}},
		"by load":   {Model: "m"},
		"a prefix":  {Input: intake.Input{Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a body that was cut`), Route: openai.RouteChat, Truncated: true}},
		"any route": {Input: intake.Input{Body: []byte(`{"model":"m","prompt":"x"}`)}},
	} {
		if a, err := f.router.Choose(t.Context(), q); err != nil || a.Replica == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: []byte(`{"model":"m","input":"x"}`), Route: openai.RouteEmbeddings}}); reasonOf(err) != apierror.NotSupported {
		t.Errorf("a body without a place in a cache: %v", err)
	}
	if n := f.requests(); n != 0 {
		t.Errorf("the engines got %d requests", n)
	}
}

// A caller that has left while its question was decided gets no answer, so nothing stays booked for it.
func TestAChoiceWhoseCallerHasLeftIsNotBooked(t *testing.T) {
	for name, booking := range map[string]intake.Booking{"without a name": intake.Reserve, "with a name, by which it may be asked again": intake.ReserveOnce} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			var f *fleet
			f = start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				p.Decider = decide(func(ctx context.Context, req *chooser.Request) (*chooser.Choice, error) {
					defer leave()
					return f.chooser.Choose(ctx, req)
				})
			})
			a, err := f.router.Choose(ctx, &intake.Question{Model: "m", RequestID: "q", Input: intake.Input{IDs: []uint32{1, 2, 3}}, Terms: intake.Terms{Booking: booking}})
			if booking == intake.ReserveOnce {
				must(t, err)
				a.Release(chooser.Result{})
			} else if reasonOf(err) != apierror.Cancelled {
				t.Errorf("the answer is %v, %v", a, err)
			}
			f.settled()
		})
	}
}

// Whoever cannot report the first token must not hold the rank's queue up until the end.
func TestAPromptOfWhichNobodyTellsIsDoneWhenPredicted(t *testing.T) {
	const streamed = `{"model":"m","stream":true,"prompt":"a long text"}`
	for name, c := range map[string]struct {
		q    intake.Question
		done bool
	}{
		"the end only":       {intake.Question{Input: intake.Input{Body: []byte(streamed)}, Terms: intake.Terms{Reports: intake.ReportsEnd}}, true},
		"not streamed":       {intake.Question{Input: intake.Input{Body: []byte(`{"model":"m","prompt":"a long text"}`)}}, true},
		"nothing promised":   {intake.Question{Input: intake.Input{Body: []byte(streamed)}}, true},
		"everything is told": {intake.Question{Input: intake.Input{Body: []byte(streamed)}, Terms: intake.Terms{Reports: intake.ReportsFirstToken}}, false},
		"all of an answer":   {intake.Question{Input: intake.Input{Body: []byte(`{"model":"m","prompt":"a long text"}`)}, Terms: intake.Terms{Reports: intake.ReportsFirstToken}}, false},
		"cut off":            {intake.Question{Input: intake.Input{Body: []byte(`{"model":"m","prompt":"a long te`), Truncated: true}, Terms: intake.Terms{Reports: intake.ReportsFirstToken}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.engines[0].tokenizes(text(200, `{"count":2000,"max_model_len":4096,"tokens":[`+strings.Repeat("5,", 1999)+`5]}`))
			c.q.Route, c.q.Booking = openai.RouteCompletions, intake.Reserve
			a, err := f.router.Choose(t.Context(), &c.q)
			must(t, err)
			defer a.Release(chooser.Result{})
			whole := f.book.View(a.Slot, time.Now())
			later := f.book.View(a.Slot, time.Now().Add(time.Hour))
			if done := later.Prefilling == 0; whole.InFlight != 1 || done != c.done {
				t.Errorf("booked %d, an hour later %d are in prefill; want it done: %v", whole.InFlight, later.Prefilling, c.done)
			}
		})
	}
}

func TestEncodingGivesAllIDs(t *testing.T) {
	f := start(t, 1, nil)
	a, err := f.router.Encode(t.Context(), &intake.Question{Model: "m", Input: intake.Input{Text: "once upon a time"}})
	if err != nil || len(a.Encoding.IDs) != 4 || a.Encoding.Source != tokenizer.SourceTokenize {
		t.Errorf("Encode() = %+v, %v", a, err)
	}
	if _, err := f.router.Encode(t.Context(), &intake.Question{Model: "m"}); reasonOf(err) != apierror.InvalidBody {
		t.Errorf("without a prompt: %v, want invalid_body", err)
	}
	f.engines[0].tokenizes(text(500, "broken"))
	if _, err := f.router.Encode(t.Context(), &intake.Question{Model: "m", Input: intake.Input{Text: "another text"}}); reasonOf(err) != apierror.UpstreamError {
		t.Errorf("without a tokenizer: %v, want an upstream error", err)
	}
}

func TestStoredResponsesAreAskedForWhereTheyAre(t *testing.T) {
	f := start(t, 3, nil)
	for i, e := range f.engines {
		id := "resp_" + string(rune('a'+i))
		e.does(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost:
				text(200, `{"id":"`+id+`","object":"response"}`)(w, r)
			case strings.HasSuffix(r.URL.Path, id):
				text(200, `{"id":"`+id+`","object":"response","from":"store"}`)(w, r)
			default:
				text(404, `{"error":{"message":"not here"}}`)(w, r)
			}
		})
	}
	to := &client{}
	call := &intake.Call{Route: openai.RouteResponses, Method: http.MethodPost, Path: "/v1/responses", Body: []byte(`{"model":"m","input":"x"}`), Header: http.Header{}}
	must(t, f.router.Serve(t.Context(), call, to))
	id := "resp_" + string(to.body.String()[len(`{"id":"resp_`)])
	before := f.requests()
	get := func(id string) (*client, error) {
		to := &client{}
		return to, f.router.Stored(t.Context(), &intake.Call{Route: openai.RouteResponses, Method: http.MethodGet, Path: "/v1/responses/" + id, Header: http.Header{}}, id, to)
	}
	if to, err := get(id); err != nil || !strings.Contains(to.body.String(), "store") || f.requests() != before+1 {
		t.Errorf("%v, %q, %d requests; want one to the replica that has it", err, &to.body, f.requests()-before)
	}
	for _, other := range []string{"resp_a", "resp_b", "resp_c"} { // nobody remembers two of them
		if to, err := get(other); err != nil || !strings.Contains(to.body.String(), other) {
			t.Errorf("%s: %v, %q", other, err, &to.body)
		}
	}
	if _, err := get("resp_z"); apierror.From(err) == nil || apierror.From(err).HTTPStatus() != 404 {
		t.Errorf("a response that nobody has: %v, want 404", err)
	}
	f.settled()
}

func TestAnAliasIsReplacedInTheBody(t *testing.T) {
	f := start(t, 1, func(_ *router.Params, _ *chooser.Config, r *registry.Config) {
		r.Aliases = map[string]string{"gpt-4": "m"}
	})
	must(t, f.router.Serve(t.Context(), chat(`{ "model" : "gpt-4", "messages":[{"role":"user","content":"hi"}] }`), &client{}))
	if got := string(f.engines[0].bodies()[0]); got != `{ "model" : "m", "messages":[{"role":"user","content":"hi"}] }` {
		t.Errorf("the engine got %s", got)
	}
}

func TestUnknownPathsGoToTheModelsPool(t *testing.T) {
	f := start(t, 1, nil)
	f.engines[0].does(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text(207, r.Method+" "+r.URL.RequestURI()+" "+string(body), "Openai-Version", "yes", "X-Engine", "yes", "Location", "http://engine/", "Retry-After", "999999999")(w, r)
	})
	to := &client{}
	call := &intake.Call{Route: openai.RouteOther, Method: http.MethodPut, Path: "/v3/new/thing", RawQuery: "a=b", Body: []byte(`{"model":"m"}`), Header: http.Header{}}
	must(t, f.router.Serve(t.Context(), call, to))
	if to.status != 207 || to.body.String() != `PUT /v3/new/thing?a=b {"model":"m"}` || to.header.Get("Openai-Version") != "yes" ||
		to.header.Get("X-Engine") != "" || to.header.Get("Location") != "" || to.header.Get("Retry-After") != "" {
		t.Errorf("the client got %d %q %v", to.status, &to.body, to.header)
	}
}

// A hint of the answer's length is what the choice expects; without one, what is usual, within the body's limit.
func TestTheChoiceExpectsWhatTheCallerDoes(t *testing.T) {
	f := start(t, 1, nil)
	body := func(more string) []byte {
		return []byte(`{"model":"m","max_tokens":500,"messages":[{"role":"user","content":"hi"}]` + more + `}`)
	}
	for name, c := range map[string]struct {
		q    intake.Question
		want int
	}{
		"the limit":  {intake.Question{Input: intake.Input{Body: body(`,"max_completion_tokens":90`)}}, 90},
		"no hint":    {intake.Question{Input: intake.Input{Body: body("")}}, 256},
		"the body":   {intake.Question{Input: intake.Input{Body: body(`,"expected_output_tokens":20`)}}, 20},
		"the header": {intake.Question{Header: http.Header{"X-Kvpilot-Expected-Output-Tokens": {"30"}}, Input: intake.Input{Body: body(`,"expected_output_tokens":20`)}}, 30},
		"the call":   {intake.Question{ExpectedOutput: 40, Input: intake.Input{Body: body(`,"expected_output_tokens":20`)}}, 40},
	} {
		a, err := f.router.Choose(t.Context(), &c.q)
		if err != nil || a.Decision.ExpectedOutput != c.want {
			t.Errorf("%s: %d tokens are expected, %v; want %d", name, a.Decision.ExpectedOutput, err, c.want)
		}
	}
}
