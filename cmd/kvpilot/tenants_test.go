package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

const twoTenants = `
api:
  keys: [{name: a, key: key-of-a-}, {name: b, key: key-of-b-}]
`

// Item 6: with the engines' own events, what kvpilot predicts of a tenant's prompt is what the engine finds, of the
// tenant alone: in each format, with a salt of the caller's own, and for callers that send requests themselves.
func TestPredictionsOfSaltedPromptsAreExact(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, yaml: twoTenants + "router: {tenant_salt: \"on\", tenant_salt_secret: a secret of the fleet}\n"})
	text := strings.Repeat("clause by clause of a long contract, ", 60)
	for name, c := range map[string]struct{ path, body string }{
		"chat":          {"/v1/chat/completions", `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"chat ` + text + `"}]}`},
		"completions":   {"/v1/completions", `{"model":"sim","max_tokens":2,"prompt":"completions ` + text + `"}`},
		"with own salt": {"/v1/completions", `{"model":"sim","max_tokens":2,"cache_salt":"mine","prompt":"salted ` + text + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			ask := func(tenant string) (predicted, cached int) {
				a := postTo(t, "http://"+f.http+c.path, c.body, "Authorization", "Bearer key-of-"+tenant+"-")
				var answer struct {
					Usage struct {
						Details struct {
							Cached int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					} `json:"usage"`
				}
				if err := json.Unmarshal(a.body, &answer); a.status != http.StatusOK || err != nil {
					t.Fatalf("%d %v %s", a.status, err, a.body)
				}
				predicted, err := strconv.Atoi(a.header.Get("X-Kvpilot-Overlap-Tokens"))
				if err != nil {
					t.Fatalf("no overlap in %v", a.header)
				}
				return predicted, answer.Usage.Details.Cached
			}
			if predicted, cached := ask("a"); predicted != 0 || cached != 0 {
				t.Errorf("the first time: predicted %d, cached %d", predicted, cached)
			}
			f.eventually("the same tenant finds its blocks, as predicted", func() bool {
				predicted, cached := ask("a")
				return predicted == cached && cached > 200
			})
			if predicted, cached := ask("b"); predicted != 0 || cached != 0 {
				t.Errorf("another tenant: predicted %d, cached %d", predicted, cached)
			}
			choose := postTo(t, "http://"+f.http+"/v1/route:choose", c.body, "Authorization", "Bearer key-of-a-", "X-Kvpilot-Booking", "none")
			var choice struct {
				Salt    string `json:"cache_salt"`
				Overlap int    `json:"overlap_gpu_tokens"`
			}
			if err := json.Unmarshal(choose.body, &choice); err != nil || len(choice.Salt) != 43 || choice.Overlap < 200 {
				t.Errorf("%d %s: the choice tells no salt or no overlap", choose.status, choose.body)
			}
		})
	}
}

// Item 6: the RPC that tells what each replica holds tells it to those alone who may know.
func TestOverlapRPCIsForThoseWhoMayKnow(t *testing.T) {
	question, err := json.Marshal(map[string]any{"model": "sim", "text": "what does anybody else ask"})
	if err != nil {
		t.Fatal(err)
	}
	for settings, want := range map[string]int{
		"":                                 http.StatusForbidden,
		"router: {show_overlap: always}\n": http.StatusOK,
		"router: {tenant_salt: \"on\", tenant_salt_secret: a secret of the fleet}\n": http.StatusOK,
	} {
		f := startFleet(t, fleetOptions{replicas: 1, yaml: twoTenants + settings})
		if a := postTo(t, "http://"+f.http+"/kvpilot/v1/overlap", string(question), "Authorization", "Bearer key-of-a-"); a.status != want {
			t.Errorf("%q: %d %s, want %d", settings, a.status, a.body, want)
		}
	}
}
