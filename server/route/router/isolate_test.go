package router_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// salted is a router as f's, with tenant_salt on.
func salted(t testing.TB, f *fleet, key, unsalted string) *router.Router {
	t.Helper()
	c := intake.DefaultConfig()
	c.TenantSalt, c.TenantSaltSecret, c.UnsaltedRoutes = intake.SwitchOn, secret.New(key), unsalted
	must(t, c.Validate())
	return router.New(c, f.params)
}

const saltKey = "a secret of the fleet"

// saltOf sends a body as a tenant and returns the cache_salt that the engine gets.
func saltOf(t *testing.T, f *fleet, r *router.Router, tenant string, route openai.Route, path, body string) string {
	t.Helper()
	call := chat(body)
	call.Route, call.Path, call.Tenant = route, path, tenant
	must(t, r.Serve(t.Context(), call, &client{}))
	bodies := f.engines[0].bodies()
	var got struct {
		Salt string `json:"cache_salt"`
	}
	must(t, json.Unmarshal(bodies[len(bodies)-1], &got))
	return got.Salt
}

// Item 6: each tenant has a salt of its own on each route that has the field; the caller's own counts within it.
func TestEachTenantHasASaltOfItsOwn(t *testing.T) {
	f := start(t, 1, nil)
	r, other := salted(t, f, saltKey, intake.UnsaltedRefuse), salted(t, f, "another secret of another fleet", intake.UnsaltedRefuse)
	form := regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
	seen := map[string]string{}
	for _, tenant := range []string{"", "a", "b", "ab"} {
		for _, own := range []string{"", "b", "mine"} {
			body := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
			if own != "" {
				body = `{"cache_salt":"` + own + `","model":"m","messages":[{"role":"user","content":"hi"}]}`
			}
			salt := saltOf(t, f, r, tenant, openai.RouteChat, "/v1/chat/completions", body)
			if !form.MatchString(salt) {
				t.Fatalf("salt %q: engines take 128 letters, digits, - and _ at most", salt)
			}
			if who, dup := seen[salt]; dup {
				t.Errorf("%q/%q has the salt of %s", tenant, own, who)
			}
			seen[salt] = tenant + "/" + own
			if again := saltOf(t, f, salted(t, f, saltKey, intake.UnsaltedRefuse), tenant, openai.RouteChat, "/v1/chat/completions", body); again != salt {
				t.Errorf("another router of the fleet gives %q the salt %q, not %q", tenant, again, salt)
			}
			if theirs := saltOf(t, f, other, tenant, openai.RouteChat, "/v1/chat/completions", body); theirs == salt {
				t.Error("the salt does not depend on the secret")
			}
		}
	}
	passes := salted(t, f, saltKey, intake.UnsaltedPass)
	want := saltOf(t, f, r, "a", openai.RouteChat, "/v1/chat/completions", `{"model":"m","messages":[]}`)
	for path, body := range map[string]string{
		"/v1/completions":            `{"model":"m","prompt":"x"}`,
		"/v1/responses":              `{"model":"m","input":"x"}`,
		"/v1/messages":               `{"model":"m","max_tokens":5,"messages":[]}`,
		"/v1/embeddings":             `{"model":"m","input":"x"}`,
		"/v1/rerank":                 `{"model":"m","query":"x","documents":["y"]}`,
		"/v1/score":                  `{"model":"m"}`,
		"/classify":                  `{"model":"m","input":"x"}`,
		"/pooling":                   `{"model":"m","input":"x"}`,
		"/v1/chat/completions/batch": `{"model":"m","messages":[[]]}`,
		"/inference/v1/generate":     `{"model":"m","token_ids":[1]}`,
	} {
		old := path != "/v1/completions" && path != "/v1/responses" && path != "/inference/v1/generate"
		call := chat(body)
		call.Route, call.Path, call.Tenant = openai.RouteOf(path), path, "a"
		if err := r.Serve(t.Context(), call, &client{}); old != (reasonOf(err) == apierror.NotSupported) {
			t.Errorf("%s on vLLM 0.17: %v, refused should be %v", path, err, old)
		}
		if got := saltOf(t, f, passes, "a", openai.RouteOf(path), path, body); got != want {
			t.Errorf("%s: salt %q, want %q", path, got, want)
		}
	}
	if got := saltOf(t, f, r, "a", openai.RouteCountTokens, "/v1/messages/count_tokens", `{"model":"m","messages":[]}`); got != "" {
		t.Errorf("a route that computes no block gets the salt %q", got)
	}
}

func TestRoutesWithoutASalt(t *testing.T) {
	f := start(t, 1, nil)
	for _, path := range []string{"/cohere/v2/chat", "/v2/embed", "/v9/new"} {
		call := chat(`{"model":"m"}`)
		call.Route, call.Path, call.Tenant = openai.RouteOf(path), path, "a"
		if err := salted(t, f, saltKey, intake.UnsaltedRefuse).Serve(t.Context(), call, &client{}); reasonOf(err) != apierror.NotSupported {
			t.Errorf("%s: %v, want it refused", path, err)
		}
		must(t, salted(t, f, saltKey, intake.UnsaltedPass).Serve(t.Context(), call, &client{}))
	}
	for _, salt := range []string{`""`, `5`, `["x"]`, `{"a":1}`} {
		call := chat(`{"model":"m","messages":[],"cache_salt":` + salt + `}`)
		if err := salted(t, f, saltKey, intake.UnsaltedRefuse).Serve(t.Context(), call, &client{}); reasonOf(err) != apierror.InvalidBody {
			t.Errorf("cache_salt %s: %v, want it refused", salt, err)
		}
	}
	must(t, salted(t, f, saltKey, intake.UnsaltedRefuse).Serve(t.Context(), chat(`{"model":"m","messages":[],"cache_salt":null}`), &client{}))
}

// Callers that send requests themselves are given the salt that the engine must get.
func TestAChoiceTellsTheSalt(t *testing.T) {
	f := start(t, 1, nil)
	r := salted(t, f, saltKey, intake.UnsaltedRefuse)
	body := `{"model":"m","messages":[{"role":"user","content":"hi"}],"cache_salt":"own"}`
	sent := saltOf(t, f, r, "a", openai.RouteChat, "/v1/chat/completions", body)
	a, err := r.Choose(t.Context(), &intake.Question{Caller: intake.Caller{Tenant: "a"}, Input: intake.Input{Body: []byte(body), Route: openai.RouteChat}})
	must(t, err)
	b, err := r.Choose(t.Context(), &intake.Question{Model: "m", Salt: "own", Caller: intake.Caller{Tenant: "a"}, Input: intake.Input{IDs: []uint32{1, 2}}})
	must(t, err)
	if a.Salt != sent || b.Salt != sent || a.HideOverlap {
		t.Errorf("salts %q and %q, want %q", a.Salt, b.Salt, sent)
	}
	plain, err := f.router.Choose(t.Context(), &intake.Question{Caller: intake.Caller{Tenant: "a"}, Input: intake.Input{Body: []byte(body), Route: openai.RouteChat}})
	must(t, err)
	if plain.Salt != "" || !plain.HideOverlap {
		t.Errorf("without tenant_salt the answer has the salt %q, and hides %v", plain.Salt, plain.HideOverlap)
	}
}

// What replicas hold of a prompt is told to those alone of whom it tells nothing about others.
func TestWhoSeesOverlap(t *testing.T) {
	f := start(t, 1, nil)
	always := intake.DefaultConfig()
	always.ShowOverlap = intake.ShowAlways
	shows := router.New(always, f.params)
	for name, c := range map[string]struct {
		router *router.Router
		tenant string
		may    bool
		want   bool
	}{
		"no keys":          {f.router, "", false, true},
		"a tenant":         {f.router, "a", false, false},
		"one that may":     {f.router, "a", true, true},
		"always":           {shows, "a", false, true},
		"with tenant_salt": {salted(t, f, saltKey, intake.UnsaltedRefuse), "a", false, true},
	} {
		call, to := chat(""), &client{}
		call.Tenant, call.ShowOverlap = c.tenant, c.may
		must(t, c.router.Serve(t.Context(), call, to))
		for _, header := range []string{router.HeaderOverlap, router.HeaderChoice} {
			if _, told := to.header[http.CanonicalHeaderKey(header)]; told != c.want {
				t.Errorf("%s: %s told: %v, want %v", name, header, told, c.want)
			}
		}
		if _, told := to.header[http.CanonicalHeaderKey(router.HeaderReplica)]; !told {
			t.Errorf("%s: the replica's name is gone too", name)
		}
		_, err := c.router.Choose(t.Context(), &intake.Question{Model: "m", Explain: true, Caller: intake.Caller{Tenant: c.tenant, ShowOverlap: c.may}, Input: intake.Input{Text: "x"}, Terms: intake.Terms{Booking: intake.DryRun}})
		if got := reasonOf(err); (got == apierror.PermissionDenied) == c.want || c.want && err != nil {
			t.Errorf("%s: a whole decision: %v", name, err)
		}
	}
}

// What the router remembers of a tenant's prompts is no faster for another one.
func TestTokenIDsAreRememberedByTenant(t *testing.T) {
	f := start(t, 1, nil)
	r := salted(t, f, saltKey, intake.UnsaltedRefuse)
	for _, c := range []struct {
		tenant string
		want   int
	}{{"a", 1}, {"a", 1}, {"b", 2}, {"b", 2}, {"a", 2}} {
		call := chat("")
		call.Tenant = c.tenant
		must(t, r.Serve(t.Context(), call, &client{}))
		if n := f.engines[0].asked(); n != c.want {
			t.Errorf("after a request of %s the engine was asked for ids %d times, want %d", c.tenant, n, c.want)
		}
	}
}
