package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// A response belongs to the tenant that had it made. No engine is asked for others, and one that this router did not see made
// is nobody's unless the settings say that all may have it.
func TestStoredResponsesHaveOwners(t *testing.T) {
	f := start(t, 2, nil)
	f.script(func(w http.ResponseWriter, r *http.Request) {
		text(200, `{"id":"resp_1","object":"response","secret":"of a"}`)(w, r)
	})
	create := func(r *router.Router, tenant, members string) error {
		return r.Serve(t.Context(), &intake.Call{
			Route: openai.RouteResponses, Method: http.MethodPost, Path: "/v1/responses", Body: []byte(`{"model":"m","input":"x"` + members + `}`), Header: http.Header{}, Caller: intake.Caller{Tenant: tenant},
		}, &client{})
	}
	get := func(r *router.Router, tenant, id string) (string, error) {
		to := &client{}
		err := r.Stored(t.Context(), &intake.Call{Route: openai.RouteResponses, Method: http.MethodGet, Path: "/v1/responses/" + id, Header: http.Header{}, Caller: intake.Caller{Tenant: tenant}}, id, to)
		return to.body.String(), err
	}
	must(t, create(f.router, "a", ""))
	if body, err := get(f.router, "a", "resp_1"); err != nil || !strings.Contains(body, "secret") {
		t.Errorf("the owner gets %q, %v", body, err)
	}
	before := f.requests()
	for name, err := range map[string]error{
		"b reads":                       second(get(f.router, "b", "resp_1")),
		"b continues":                   create(f.router, "b", `,"previous_response_id":"resp_1"`),
		"a reads what is not known":     second(get(f.router, "a", "resp_2")),
		"b continues what is not known": create(f.router, "b", `,"previous_response_id":"resp_2"`),
	} {
		public := apierror.From(err)
		if public == nil || public.HTTPStatus() != http.StatusNotFound || public.Answer == nil || !strings.Contains(string(public.Answer.Body), `Response with id 'resp_`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := create(f.router, "b", `,"request_id":"resp_1"`); reasonOf(err) != apierror.InvalidBody {
		t.Errorf("b names its response as a's: %v", err)
	}
	if f.requests() != before {
		t.Errorf("engines were asked %d times", f.requests()-before)
	}

	c := intake.DefaultConfig()
	c.UnownedResponses = true
	open := router.New(c, f.params)
	if _, err := get(open, "b", "resp_1"); apierror.From(err) == nil {
		t.Error("another's response is nobody's")
	}
	if body, err := get(open, "b", "resp_2"); err != nil || body == "" {
		t.Errorf("nobody's response: %q, %v", body, err)
	}
	if _, err := get(f.router, "", "resp_1"); err != nil {
		t.Errorf("without keys: %v", err)
	}
}

func second(_ string, err error) error { return err }
