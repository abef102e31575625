package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// Answers about routing as a client sees them, before simulated replicas.

// recorded is what these tests read of a decision.
type recorded struct {
	Reason       string `json:"reason"`
	ReplicaID    string `json:"replica_id"`
	PromptTokens int    `json:"prompt_tokens"`
	Outcome      struct {
		ReplicaID string `json:"replica_id"`
	} `json:"outcome"`
}

// decision reads a decision's record.
func (f *fleet) decision(id string) recorded {
	f.t.Helper()
	resp, err := http.Get("http://" + f.http + "/kvpilot/v1/decisions/" + id)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	var body struct {
		Decisions []recorded `json:"decisions"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || len(body.Decisions) == 0 {
		f.t.Fatalf("decision %q: %d, %v", id, resp.StatusCode, err)
	}
	return body.Decisions[len(body.Decisions)-1]
}

// idsOf is a JSON list of n token ids that begin with first.
func idsOf(first, n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(first + i%97)
	}
	return "[" + strings.Join(ids, ",") + "]"
}

// A prompt longer than any context is the caller's mistake, and the engine words it.
func TestTooLongAPromptIsWordedByTheEngine(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, engine: func(i int, c *enginesim.Config) {
		c.Version = "0.17.0" // /tokenize only
		c.Core.MaxModelLen = []int{512, 1024}[i]
	}})
	words := strings.Repeat("several words of a long prompt ", 300)
	for name, body := range map[string]string{
		"text":  `{"model":"sim","max_tokens":4,"prompt":"` + words + `"}`,
		"ids":   `{"model":"sim","max_tokens":4,"prompt":` + idsOf(100, 2000) + `}`,
		"chat":  `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"` + words + `"}]}`,
		"cut":   `{"model":"sim","max_tokens":4,"truncate_prompt_tokens":1100,"prompt":` + idsOf(100, 2000) + `}`,
		"again": `{"model":"sim","max_tokens":4,"stream":true,"prompt":` + idsOf(100, 2000) + `}`,
	} {
		path := "/v1/completions"
		if name == "chat" {
			path = "/v1/chat/completions"
		}
		through, direct := f.post(path, body), postTo(t, f.urls[1]+path, body)
		if through.status != 400 || string(through.body) != string(direct.body) || through.header.Get("Retry-After") != "" || through.header.Get("X-Kvpilot-Reason") != "INVALID_BODY" {
			t.Errorf("%s: %d %s %v; the replica with the longest context says %d %s", name, through.status, through.body, through.header, direct.status, direct.body)
		}
	}
	for name, body := range map[string]string{
		"only the longer context holds it": `{"model":"sim","max_tokens":4,"prompt":` + idsOf(100, 700) + `}`,
		"a list whose prompts fit":         `{"model":"sim","max_tokens":4,"prompt":[` + idsOf(100, 400) + `,` + idsOf(200, 400) + `,` + idsOf(300, 400) + `]}`,
		"cut to fit":                       `{"model":"sim","max_tokens":4,"truncate_prompt_tokens":300,"prompt":` + idsOf(100, 2000) + `}`,
		"cut to the context":               `{"model":"sim","max_tokens":4,"truncate_prompt_tokens":-1,"prompt":` + idsOf(100, 2000) + `}`,
		"a list cut to fit":                `{"model":"sim","max_tokens":4,"truncate_prompt_tokens":300,"prompt":[` + idsOf(100, 2000) + `,` + idsOf(200, 2000) + `]}`,
		"text cut to the context":          `{"model":"sim","max_tokens":4,"truncate_prompt_tokens":-1,"prompt":"` + words + `"}`,
	} {
		if a := f.post("/v1/completions", body); a.status != 200 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for _, path := range []string{"/v1/route:choose", "/kvpilot/v1/choose"} {
		body := `{"model":"sim","max_tokens":4,"prompt":` + idsOf(100, 2000) + `}`
		if path == "/kvpilot/v1/choose" {
			body = `{"model":"sim","token_ids":{"ids":` + idsOf(100, 2000) + `}}`
		}
		a := f.post(path, body)
		if message, _, _, code := a.openAIError(t); a.status != 400 || code != "invalid_body" || a.header.Get("Retry-After") != "" || !strings.Contains(message, "maximum context length is 1024 tokens") {
			t.Errorf("%s: %d %s %v", path, a.status, a.body, a.header)
		}
	}
	f.settled()
}

// A response is stored by one replica; what continues it goes there.
func TestPreviousResponseGoesToItsReplica(t *testing.T) {
	for _, stream := range []string{"false", "true"} {
		t.Run("stream "+stream, func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 3, engine: func(_ int, c *enginesim.Config) { c.MeanAnswer = 4 }, yaml: "chooser: {policy: round-robin}\n"})
			a := f.post("/v1/responses", `{"model":"sim","input":"the first turn","max_output_tokens":4,"stream":`+stream+`}`)
			at := a.header.Get("X-Kvpilot-Replica")
			id := responseID(t, a)
			for turn := range 9 {
				body := fmt.Sprintf(`{"model":"sim","input":"turn %d","max_output_tokens":4,"stream":%s,"previous_response_id":%q}`, turn, stream, id)
				a = f.post("/v1/responses", body)
				if a.status != 200 || a.header.Get("X-Kvpilot-Replica") != at {
					t.Fatalf("turn %d: %d from %q, want %q: %s", turn, a.status, a.header.Get("X-Kvpilot-Replica"), at, a.body)
				}
				if reason := f.decision(a.header.Get("X-Kvpilot-Decision")).Reason; reason != "pinned" {
					t.Errorf("turn %d: reason %q, want pinned", turn, reason)
				}
				id = responseID(t, a)
			}
			direct := postTo(t, f.urls[0]+"/v1/responses", `{"model":"sim","input":"x","previous_response_id":"resp_of_nobody"}`)
			a = f.post("/v1/responses", `{"model":"sim","input":"x","previous_response_id":"resp_of_nobody"}`)
			if a.status != 404 || string(a.body) != string(direct.body) || a.header.Get("X-Kvpilot-Reason") != "UPSTREAM_REFUSED" {
				t.Errorf("a response that nobody stores: %d %s %v", a.status, a.body, a.header)
			}
		})
	}
}

// A router that did not see the first turn asks the replicas where it is.
func TestPreviousResponseIsFoundByARouterThatDoesNotKnowIt(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 3, yaml: "chooser: {policy: round-robin}\n"})
	for i, url := range f.urls {
		a := postTo(t, url+"/v1/responses", `{"model":"sim","input":"the first turn","max_output_tokens":4}`)
		id := responseID(t, a)
		for range 3 {
			a = f.post("/v1/responses", fmt.Sprintf(`{"model":"sim","input":"on","max_output_tokens":4,"previous_response_id":%q}`, id))
			if want := fmt.Sprint("r", i); a.status != 200 || a.header.Get("X-Kvpilot-Replica") != want {
				t.Errorf("%d from %q, want %q: %s", a.status, a.header.Get("X-Kvpilot-Replica"), want, a.body)
			}
		}
	}
}

// responseID reads the id of a response, streamed or not.
func responseID(t *testing.T, a answer) string {
	t.Helper()
	var body struct {
		ID       string `json:"id"`
		Response struct {
			ID string `json:"id"`
		} `json:"response"`
	}
	text := a.body
	if events := a.events(); len(events) > 0 {
		text = []byte(events[len(events)-1])
	}
	if err := json.Unmarshal(text, &body); err != nil || body.ID+body.Response.ID == "" {
		t.Fatalf("%d %s has no id: %v", a.status, a.body, err)
	}
	return body.ID + body.Response.ID
}

// The same question by the same name is one booking, as long as that lives.
func TestChooseReplicaTwiceBooksOnce(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	type chosen struct {
		ReservationID string `json:"reservation_id"`
		ReplicaID     string `json:"replica_id"`
		Effect        string `json:"effect"`
	}
	ask := func(body string) (c chosen, a answer) {
		a = f.post("/kvpilot/v1/choose", body)
		if err := json.Unmarshal(a.body, &c); err != nil {
			t.Fatal(err)
		}
		return c, a
	}
	const body = `{"model":"sim","text":"once upon a time","request_id":"mine"}`
	first, _ := ask(body)
	for range 3 {
		again, a := ask(body)
		if again.ReservationID != first.ReservationID || again.ReplicaID != first.ReplicaID || again.Effect != "EFFECT_DUPLICATE" {
			t.Errorf("again: %s, want the reservation %+v as a duplicate", a.body, first)
		}
	}
	if live := f.metric("kvpilot_load_reservations"); live != 1 || first.Effect != "EFFECT_APPLIED" {
		t.Errorf("%v reservations live, the first was %+v", live, first)
	}
	if _, a := ask(`{"model":"sim","text":"another prompt","request_id":"mine"}`); a.status != 409 {
		t.Errorf("another request by a name in use: %d %s", a.status, a.body)
	}
	f.post("/kvpilot/v1/reservations/"+first.ReservationID+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`)
	if next, a := ask(body); next.ReservationID == first.ReservationID || next.Effect != "EFFECT_APPLIED" {
		t.Errorf("after the end: %s", a.body)
	}
}

// Prefix-affinity goes by the text of a chat, as by that of a completion.
func TestPrefixAffinityKeepsAChatTogether(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 3, noEvents: true, yaml: "chooser: {policy: prefix-affinity}\n"})
	shapes := map[string]func(text string) (path, body string){
		"completions": func(s string) (string, string) {
			return "/v1/completions", `{"model":"sim","max_tokens":1,"prompt":"` + s + `"}`
		},
		"chat": func(s string) (string, string) {
			return "/v1/chat/completions", `{"model":"sim","max_tokens":1,"messages":[{"role":"system","content":"you help"},{"role":"user","content":"` + s + `"}]}`
		},
		"parts": func(s string) (string, string) {
			return "/v1/chat/completions", `{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"` + s + `"}]}]}`
		},
		"messages": func(s string) (string, string) {
			return "/v1/messages", `{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"` + s + `"}]}`
		},
		"responses": func(s string) (string, string) {
			return "/v1/responses", `{"model":"sim","max_output_tokens":1,"input":[{"role":"user","content":"` + s + `"}]}`
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			for talk := range 4 {
				words := strings.Repeat(fmt.Sprintf("%s talk %d ", name, talk), 40)
				path, body := shape(words)
				at := f.post(path, body).header.Get("X-Kvpilot-Replica")
				for turn := range 3 {
					words += fmt.Sprintf("and turn %d ", turn)
					path, body = shape(words)
					a := f.post(path, body)
					d := f.decision(a.header.Get("X-Kvpilot-Decision"))
					if a.header.Get("X-Kvpilot-Replica") != at || d.Reason != "cost" {
						t.Fatalf("talk %d turn %d: %d from %q (%s), want %q by cost: %s", talk, turn, a.status, a.header.Get("X-Kvpilot-Replica"), d.Reason, at, a.body)
					}
				}
			}
		})
	}
}

// A request without what its policy goes by is served by load; it is told, counted, and logged once per reason.
func TestNoKeyIsToldCountedAndLoggedOnce(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, yaml: "chooser: {policy: predicted-ttft}\ntokenizer: {enabled: false}\n"})
	reason := func(path, body string, header ...string) string {
		t.Helper()
		a := f.post(path, body, header...)
		id := a.header.Get("X-Kvpilot-Decision")
		if id == "" {
			var c struct {
				DecisionID string `json:"decision_id"`
			}
			if err := json.Unmarshal(a.body, &c); err != nil {
				t.Fatalf("%d %s", a.status, a.body)
			}
			id = c.DecisionID
		}
		return f.decision(id).Reason
	}
	for _, policy := range []string{"predicted-ttft", "overlap-load", "weighted-scorers", "prefix-affinity"} {
		for range 2 {
			if got := reason("/v1/route:choose", `{"model":"sim","messages":[]}`, "X-Kvpilot-Policy", policy, "X-Kvpilot-Booking", "none"); got != "no_key" {
				t.Errorf("%s without a prompt: reason %q", policy, got)
			}
		}
	}
	for range 2 {
		if got := reason("/v1/route:choose", `{"model":"sim","mess`, "X-Body-Truncated", "20/900", "X-Kvpilot-Booking", "none"); got != "no_key" {
			t.Errorf("an unusable beginning: reason %q", got)
		}
		if got := reason("/v1/completions", `{"model":"sim","prompt":"x","max_tokens":1}`, "X-Kvpilot-Policy", "consistent-hash"); got != "no_key" {
			t.Errorf("consistent-hash without a session: reason %q", got)
		}
		if got := reason("/v1/completions", `{"model":"sim","prompt":"a word that nobody said","max_tokens":1}`); got != "no_key" {
			t.Errorf("no token ids: reason %q", got)
		}
	}
	for reason, want := range map[string]float64{"no_prompt": 8, "truncated": 2, "no_session": 2, "disabled": 2} {
		if got := f.metric("kvpilot_router_keyless_total", `reason="`+reason+`"`); got != want {
			t.Errorf("%s: counted %v, want %v", reason, got, want)
		}
		if n := strings.Count(f.log.String(), "key_reason="+reason); n != 1 {
			t.Errorf("%s: logged %d times, want once", reason, n)
		}
	}
}

// The adapter that a question names is the model that is served, by those who have it.
func TestAdapterNarrowsTheChoice(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 3, engine: func(i int, c *enginesim.Config) {
		if i == 1 {
			c.Adapters = []string{"tuned"}
		}
	}})
	for range 6 {
		a := f.post("/kvpilot/v1/choose", `{"model":"sim","adapter":"tuned","text":"x","booking":"BOOKING_NONE"}`)
		var c struct {
			ReplicaID string `json:"replica_id"`
			Model     string `json:"model"`
		}
		if err := json.Unmarshal(a.body, &c); err != nil || c.ReplicaID != "r1" || c.Model != "tuned" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for _, body := range []string{`{"model":"sim","adapter":"other","text":"x"}`, `{"adapter":"sim","text":"x"}`} {
		a := f.post("/kvpilot/v1/choose", body)
		if _, _, param, code := a.openAIError(t); a.status != 404 || code != "model_not_found" || param != "adapter" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

// A pin that names no replica of the model will never be served: 404, not a retry.
func TestPinOfNobodyIsNotFound(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, engine: func(i int, c *enginesim.Config) { c.Models = append(c.Models, fmt.Sprint("own-", i)) }})
	for _, tc := range []struct{ path, body, pin, names string }{
		{"/v1/completions", `{"model":"sim","prompt":"x"}`, "r9", "`r9`; ReplicaService.List"},
		{"/v1/completions", `{"model":"own-0","prompt":"x"}`, "r1", "`r1`"},
		{"/v1/completions", `{"model":"sim","prompt":"x"}`, "r1@4", "`r1`"},
		{"/v1/route:choose", `{"model":"sim","prompt":"x"}`, "r9", "`r9`"},
		{"/kvpilot/v1/choose", `{"model":"sim","text":"x","candidates":{"pin":"r9"}}`, "", "`r9`"},
	} {
		var header []string
		if tc.pin != "" {
			header = []string{"X-Kvpilot-Pin", tc.pin}
		}
		a := f.post(tc.path, tc.body, header...)
		if message, _, _, code := a.openAIError(t); a.status != 404 || code != "replica_not_found" || !strings.Contains(message, tc.names) || a.header.Get("Retry-After") != "" {
			t.Errorf("%+v: %d %s %v", tc, a.status, a.body, a.header)
		}
	}
	a := f.post("/v1/completions", `{"model":"sim","prompt":"x","max_tokens":1}`, "X-Kvpilot-Pin", "r1")
	if d := f.decision(a.header.Get("X-Kvpilot-Decision")); a.status != 200 || d.Reason != "pinned" || d.ReplicaID != "r1" {
		t.Errorf("a pin that holds: %d, %+v", a.status, d)
	}
}

// A limit that is reached is the router's own, and says so.
func TestMaxRequestsPerRankIs429(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, yaml: "chooser: {max_requests_per_rank: 2}\n"})
	for i := range 3 {
		a := f.post("/kvpilot/v1/choose", `{"model":"sim","text":"x"}`)
		if i < 2 && a.status == 200 {
			continue
		}
		if _, _, _, code := a.openAIError(t); i < 2 || a.status != 429 || code != "overloaded" || a.header.Get("Retry-After") == "" {
			t.Errorf("choice %d: %d %s %v", i, a.status, a.body, a.header)
		}
	}
}

// No policy claims that a replica holds more of a prompt than there is.
func TestOverlapNeverExceedsThePrompt(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, noEvents: true, yaml: "chooser: {policy: least-requests}\n"})
	tools := strings.Repeat(`{"type":"function","function":{"name":"f","description":"a tool","parameters":{}}},`, 40)
	body := `{"model":"sim","max_tokens":1,"documents":[` + strings.TrimSuffix(tools, ",") + `],"messages":[{"role":"user","content":"hi"}]}`
	for turn := range 3 {
		a := f.post("/v1/chat/completions", body)
		d := f.decision(a.header.Get("X-Kvpilot-Decision"))
		var overlap int
		if _, err := fmt.Sscan(a.header.Get("X-Kvpilot-Overlap-Tokens"), &overlap); err != nil || overlap > d.PromptTokens {
			t.Errorf("turn %d: overlap %d of a prompt of %d: %v", turn, overlap, d.PromptTokens, err)
		}
	}
}

// A body without a model is for the engines' own, whatever adapters hang on it.
func TestMissingModelIsTheFirstOne(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, engine: func(i int, c *enginesim.Config) {
		c.Models, c.Adapters = []string{"sim", "another-name"}, []string{"tuned"}[i:]
	}})
	for _, body := range []string{`{"prompt":"x","max_tokens":1}`, `{"model":null,"prompt":"x","max_tokens":1}`, `{"model":"","prompt":"x","max_tokens":1}`} {
		a, direct := f.post("/v1/completions", body), postTo(t, f.urls[0]+"/v1/completions", body)
		var got, want struct {
			Model string `json:"model"`
		}
		if json.Unmarshal(a.body, &got) != nil || json.Unmarshal(direct.body, &want) != nil || a.status != 200 || got != want || got.Model != "sim" {
			t.Errorf("%s: %d %s; directly %d %s", body, a.status, a.body, direct.status, direct.body)
		}
	}
}

// What an engine refuses is passed on, and its label says no more than is known.
func TestEngineRefusalsAreLabelledTruthfully(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, yaml: "router: {unknown_routes: true}\n"})
	for _, tc := range []struct {
		path, body string
		faults     enginesim.Faults
		status     int
		reason     string
	}{
		{"/v1/completions", `{"model":"sim","prompt":"x"}`, enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 401}}, 401, "UPSTREAM_REFUSED"},
		{"/v1/completions", `{"model":"sim","prompt":"x"}`, enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 403}}, 403, "UPSTREAM_REFUSED"},
		{"/v1/completions", `{"model":"sim","prompt":"x"}`, enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 404}}, 404, "UPSTREAM_REFUSED"},
		{"/v1/completions", `{"model":"sim","prompt":"x"}`, enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 415}}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"/v1/completions", `{"model":"sim","prompt":"x","n":0}`, enginesim.Faults{}, 400, "INVALID_BODY"},
		{"/v1/nothing/here", `{"model":"sim"}`, enginesim.Faults{}, 404, "UPSTREAM_REFUSED"},
		{"/v1/completions", `{"model":"other","prompt":"x"}`, enginesim.Faults{}, 404, "MODEL_NOT_FOUND"},
	} {
		tc.faults.Paths = []string{"/v1/completions"}
		f.engines[0].SetFaults(tc.faults)
		a := f.post(tc.path, tc.body)
		if a.status != tc.status || a.header.Get("X-Kvpilot-Reason") != tc.reason {
			t.Errorf("%s %+v: %d %q, want %d %s", tc.path, tc.faults, a.status, a.header.Get("X-Kvpilot-Reason"), tc.status, tc.reason)
		}
	}
}

// served_by is the replica that the outcome names.
func TestServedByReachesTheOutcome(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	var c struct {
		ReservationID string `json:"reservation_id"`
		ReplicaID     string `json:"replica_id"`
	}
	if err := json.Unmarshal(f.post("/kvpilot/v1/choose", `{"model":"sim","text":"x"}`).body, &c); err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"r0": "r1", "r1": "r0"}[c.ReplicaID]
	f.post("/kvpilot/v1/reservations/"+c.ReservationID+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED","served_by":"`+other+`"}}`)
	f.eventually("the outcome names the replica that served", func() bool {
		return f.decision(c.ReservationID).Outcome.ReplicaID == other
	})
}
