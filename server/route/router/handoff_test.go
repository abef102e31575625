package router_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const gatewayEvent = `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"

func events() router.Head {
	return router.Head{Status: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}}
}

func handOff(t *testing.T, f *fleet, body string, sight router.Sight) *router.Handoff {
	t.Helper()
	h, err := f.router.HandOff(t.Context(), chat(body), sight)
	must(t, err)
	return h
}

const streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":7}`

// last is how the last booking ended.
func (f *fleet) last() decision.Outcome {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.outcomes) == 0 {
		f.t.Fatal("no booking has ended")
	}
	return f.outcomes[len(f.outcomes)-1]
}

func TestAHandoffIsBookedUntilItsEnd(t *testing.T) {
	f := start(t, 2, nil)
	h := handOff(t, f, streamBody, router.SeesAll)
	if f.book.Live() != 1 || f.requests() != 0 {
		t.Fatalf("%d bookings and %d requests, want one and none", f.book.Live(), f.requests())
	}
	if body, changed := h.Body(); changed || string(body) != streamBody || !h.Streams() {
		t.Errorf("the body is %q, changed %v", body, changed)
	}
	explained := h.Begin(events())
	if explained.Get("X-Kvpilot-Replica") != string(h.Replica().ID) {
		t.Errorf("the client reads %v", explained)
	}
	h.Write([]byte(gatewayEvent))
	h.Write([]byte(gatewayEvent + `data: {"id":"1","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}` + "\n\ndata: [DONE]\n\n"))
	if !h.Complete() {
		t.Error("a stream that said so is not complete")
	}
	h.End(t.Context(), nil)
	h.End(t.Context(), context.Canceled) // only the first one counts
	f.settled()
	if o := f.last(); o.End != decision.EndCompleted || o.OutputTokens != 2 || o.PromptTokens != 4 || o.TTFT <= 0 {
		t.Errorf("%+v", o)
	}
}

func TestHandoffsEndAsTheirAnswersDo(t *testing.T) {
	for name, c := range map[string]struct {
		head  *router.Head
		err   error
		want  decision.End
		probe bool
	}{
		"the client left before the answer": {nil, context.Canceled, decision.EndCanceled, false},
		"the client left in the answer":     {&router.Head{Status: 200}, context.Canceled, decision.EndCanceled, false},
		"the engine rejects it":             {&router.Head{Status: 400}, nil, decision.EndRejected, false},
		"the engine fails":                  {&router.Head{Status: 500}, nil, decision.EndFailed, false},
		"the replica rejects it for now":    {&router.Head{Status: 429, Header: http.Header{"Retry-After": {"2"}}}, nil, decision.EndFailed, false},
		"the gateway cannot reach it":       {&router.Head{Status: 503, Unreached: true}, nil, decision.EndFailed, true},
		"nothing is seen":                   {nil, nil, decision.EndCompleted, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			h := handOff(t, f, streamBody, router.SeesAll)
			if c.head != nil {
				h.Begin(*c.head)
				h.Write([]byte(gatewayEvent))
			}
			h.End(t.Context(), c.err)
			f.settled()
			if o := f.last(); o.End != c.want {
				t.Errorf("%v, want %v", o.End, c.want)
			}
		})
	}
}

func TestAHandoffMovesToTheReplicaThatServed(t *testing.T) {
	f := start(t, 3, nil)
	h := handOff(t, f, streamBody, router.SeesAll)
	list := h.Replicas(2)
	if len(list) != 2 || list[0].ID != h.Replica().ID || list[0].ID == list[1].ID {
		t.Fatalf("the gateway is named %v", list)
	}
	if all := h.Replicas(9); len(all) != 3 {
		t.Errorf("%d replicas, want all three", len(all))
	}
	h.Served(t.Context(), list[0].ID) // as chosen
	h.Served(t.Context(), list[1].ID)
	if f.book.Live() != 1 || h.Replica().ID != list[1].ID {
		t.Errorf("%d bookings, on %s; want one on %s", f.book.Live(), h.Replica().ID, list[1].ID)
	}
	if o := f.last(); o.End != decision.EndMoved {
		t.Errorf("the first booking ended as %v", o.End)
	}
	h.Served(t.Context(), "nobody") // it stays the request's, though nothing can be booked there
	if explained := h.Begin(events()); explained.Get("X-Kvpilot-Decision") == "" {
		t.Errorf("the client reads %v", explained)
	}
	h.End(t.Context(), nil)
	f.settled()
}

func TestAHandoffCarriesWhatTheReplicaMustGet(t *testing.T) {
	f := start(t, 1, func(_ *router.Params, _ *chooser.Config, r *registry.Config) {
		r.Aliases = map[string]string{"gpt": "m"}
		r.Replicas[0].APIKey = secret.New("replica-key")
	})
	call := chat(`{ "model" : "gpt", "messages":[{"role":"user","content":"hi"}] }`)
	call.RequestID = "mine"
	h, err := f.router.HandOff(t.Context(), call, router.SeesAll)
	must(t, err)
	defer h.End(t.Context(), nil)
	if body, changed := h.Body(); !changed || string(body) != `{ "model" : "m", "messages":[{"role":"user","content":"hi"}] }` {
		t.Errorf("the body is %s, changed %v", body, changed)
	}
	if got := h.Header(t.Context()); got.Get("X-Request-Id") != "mine" || got.Get("Authorization") != "Bearer replica-key" {
		t.Errorf("the header is %v", got)
	}
}

func TestTheGatewaysModelAndPriorityCount(t *testing.T) {
	f := start(t, 1, nil)
	call := chat(`{"model":"other","messages":[{"role":"user","content":"hi"}]}`)
	call.Model, call.Priority = "m", 7
	h, err := f.router.HandOff(t.Context(), call, router.SeesAll)
	must(t, err)
	defer h.End(t.Context(), nil)
	if body, _ := h.Body(); !strings.Contains(string(body), `"model":"m"`) || strings.Contains(string(body), "priority") {
		t.Errorf("the body is %s", body)
	}
}

func TestHandoffsWithoutABody(t *testing.T) {
	f := start(t, 2, nil)
	for name, call := range map[string]*intake.Call{
		"a list":                  {Route: openai.RouteOther, Method: http.MethodGet, Path: "/v1/models"},
		"a chat that is not sent": {Route: openai.RouteChat, Path: "/v1/chat/completions"},
		"a stored response":       {Route: openai.RouteOther, Method: http.MethodGet, Path: "/v1/responses/resp_1"},
		"one to cancel":           {Route: openai.RouteOther, Path: "/v1/responses/resp_1/cancel", Body: []byte(`{}`)},
		"a model by name":         {Route: openai.RouteChat, Model: "m", Path: "/v1/chat/completions"},
	} {
		call.Header = http.Header{}
		h, err := f.router.HandOff(t.Context(), call, router.SeesHead)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		h.Begin(router.Head{Status: 200})
		h.End(t.Context(), nil)
	}
	f.settled()
	if _, err := f.router.HandOff(t.Context(), &intake.Call{Route: openai.RouteChat, Model: "nobody", Header: http.Header{}}, router.SeesAll); reasonOf(err) != apierror.ModelNotFound {
		t.Errorf("an unknown model: %v", err)
	}
	f.settled()
}

// Answers about a stored response come from the replica that stores it.
func TestAHandoffForAStoredResponseGoesWhereItIs(t *testing.T) {
	f := start(t, 3, nil)
	call := func() *intake.Call {
		return &intake.Call{Route: openai.RouteOther, Method: http.MethodGet, Path: "/v1/responses/resp_7", Header: http.Header{}}
	}
	f.params.Pins.Put("", "resp_7", "r2")
	for range 3 {
		h, err := f.router.HandOff(t.Context(), call(), router.SeesHead)
		must(t, err)
		if h.Replica().ID != replica.ID("r2") || len(h.Replicas(3)) != 1 {
			t.Errorf("sent to %v", h.Replicas(3))
		}
		h.End(t.Context(), nil)
	}
	f.settled()
}

func TestLastsIsThePredictedAnswer(t *testing.T) {
	f := start(t, 1, nil)
	short := handOff(t, f, streamBody, router.SeesNothing)
	longer := handOff(t, f, strings.Replace(streamBody, `"max_tokens":7`, `"max_tokens":4000`, 1), router.SeesNothing)
	if short.Lasts() <= 0 || longer.Lasts() <= short.Lasts() || longer.Lasts() > time.Hour {
		t.Errorf("7 tokens last %v, 4000 tokens %v", short.Lasts(), longer.Lasts())
	}
	short.End(t.Context(), nil)
	longer.End(t.Context(), nil)
	f.settled()
}

// A gateway sends the request to one replica: no other one computes its prompt.
func TestHandoffsAreServedWhole(t *testing.T) {
	p := newPair(t, nil, nil)
	defer p.end()
	h, err := p.router.HandOff(t.Context(), completion(7, `,"stream":true`), router.SeesAll)
	must(t, err)
	if w := h.Decision().Split(); w != nil {
		t.Errorf("the request is split: %s computes its prompt, and %s gets it", w.Prefill.Replica, h.Replica().ID)
	}
	h.Begin(events())
	h.End(t.Context(), nil)
}

// Where the replica's sidecar has the prompt computed elsewhere, both replicas are booked: the one that prefills until the answer begins.
func TestASplitHandoffBooksBothReplicas(t *testing.T) {
	busy := 60
	for name, tt := range map[string]struct {
		more  string
		sight router.Sight
		run   func(t *testing.T, p *pair, h *router.Handoff)
	}{
		"a stream": {`,"stream":true`, router.SeesAll, func(t *testing.T, p *pair, h *router.Handoff) {
			if got := h.Begin(events()).Get("X-Kvpilot-Prefill"); got != "r0" {
				t.Errorf("the client reads that %q computed the prompt", got)
			}
			if n := p.book.Live(); n != busy+2 {
				t.Errorf("%d bookings before the first token, want both", n-busy)
			}
			h.Write([]byte(said("x")))
			if n := p.book.Live(); n != busy+1 {
				t.Errorf("%d bookings after the first token, want one", n-busy)
			}
			h.Write([]byte("data: [DONE]\n\n"))
			h.End(t.Context(), nil)
		}},
		"an answer in one piece": {``, router.SeesAll, func(t *testing.T, _ *pair, h *router.Handoff) {
			h.Begin(router.Head{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}})
			h.Write([]byte(`{"choices":[{"text":"x"}],"usage":{"prompt_tokens":6000,"completion_tokens":1}}`))
			h.End(t.Context(), nil)
		}},
		"the client leaves": {`,"stream":true`, router.SeesAll, func(t *testing.T, _ *pair, h *router.Handoff) {
			h.End(t.Context(), context.Canceled)
		}},
		"the engine fails": {`,"stream":true`, router.SeesAll, func(t *testing.T, _ *pair, h *router.Handoff) {
			h.Begin(router.Head{Status: 500})
			h.End(t.Context(), nil)
		}},
		"another replica serves it": {`,"stream":true`, router.SeesAll, func(t *testing.T, p *pair, h *router.Handoff) {
			h.Served(t.Context(), "r2")
			if n := p.book.Live(); n != busy+1 || h.Prefiller() != nil || h.Replica().ID != "r2" {
				t.Errorf("%d bookings on %s", n-busy, h.Replica().ID)
			}
			h.Begin(events())
			h.End(t.Context(), nil)
		}},
		"no first token is seen": {`,"stream":true`, router.SeesHead, func(t *testing.T, _ *pair, h *router.Handoff) {
			if h.Prefiller() != nil {
				t.Error("it is split")
			}
			h.End(t.Context(), nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil, nil)
			defer p.end()
			call := completion(7, tt.more)
			call.Sidecars = true
			h, err := p.router.HandOff(t.Context(), call, tt.sight)
			must(t, err)
			if by := h.Prefiller(); tt.sight == router.SeesAll && (by == nil || by.ID != "r0" || h.Replica().ID != "r1") {
				t.Errorf("%v computes the prompt for %s", by, h.Replica().ID)
			}
			tt.run(t, p, h)
			if n := p.book.Live(); n != busy {
				t.Errorf("%d bookings are left", n-busy)
			}
		})
	}
}

// rewrites give every model others, with the same weights.
type rewrites []string

func (r rewrites) Targets(string) (list []registry.Target) {
	for _, model := range r {
		list = append(list, registry.Target{Model: model, Weight: 1})
	}
	return list
}

func TestRewritesNameTheModelOfAHandoff(t *testing.T) {
	f := start(t, 1, nil)
	for name, tt := range map[string]struct {
		rule  rewrites
		model string
	}{
		"a rule":                         {rewrites{"m"}, ""},
		"the gateway's word counts more": {rewrites{"nothing"}, "m"},
	} {
		t.Run(name, func(t *testing.T) {
			call := chat(`{"model":"alias","stream":true,"messages":[]}`)
			call.Rewrites, call.Model = tt.rule, tt.model
			h, err := f.router.HandOff(t.Context(), call, router.SeesAll)
			must(t, err)
			if body, changed := h.Body(); !changed || string(body) != `{"model":"m","stream":true,"messages":[]}` {
				t.Errorf("the replica gets %s", body)
			}
			h.End(t.Context(), nil)
		})
	}
	f.settled()
}
