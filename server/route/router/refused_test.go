package router_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const (
	roles     = `{"error":{"message":"Conversation roles must alternate","type":"BadRequestError","param":null,"code":400}}`
	noModel   = `{"error":{"message":"The model m does not exist.","type":"NotFoundError","param":"model","code":404}}`
	noRoute   = `{"error":{"message":"Not Found","type":"NotFoundError","param":null,"code":404}}`
	unknown   = `{"model":"m","messages":[{"role":"user","content":"an unknown prompt"}]}`
	unknownID = `{"model":"m","messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"prompt_token_ids":[1,2]}}`
)

// TestWhatATokenizerRefusesIsTheEnginesToRefuse: a request that a tokenizer's route refuses is sent on, and
// the engine's own answer is the client's.
func TestWhatATokenizerRefusesIsTheEnginesToRefuse(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal string
		status  int
	}{
		"a 400":                  {roles, 400},
		"a 404 of the model":     {noModel, 404},
		"a 404 of another route": {noRoute, 404},
		"a 422":                  {`{}`, 422},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.engines[0].tokenizes(text(tc.status, tc.refusal))
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(unknown), to); err != nil || to.status != 200 || to.body.String() != `{"ok":true}` {
				t.Errorf("Serve() = %v, the client got %d %q; want the engine's answer", err, to.status, &to.body)
			}
			f.script(text(400, `{"error":{"message":"in the engine's own words"}}`))
			err := f.router.Serve(t.Context(), chat(unknown), &client{})
			if e := apierror.From(err); e == nil || e.HTTPStatus() != 400 || e.Message != "in the engine's own words" {
				t.Errorf("refused by both: Serve() = %v, want the engine's words", err)
			}
			f.settled()
		})
	}
}

// A replica that cannot be asked leaves the tokenizer's refusal as the answer: trying again is of no use.
func TestARefusedPromptWithoutAReplicaIsRefused(t *testing.T) {
	f := start(t, 1, nil)
	f.engines[0].tokenizes(text(400, roles))
	f.script(text(503, "loading"))
	err := f.router.Serve(t.Context(), chat(unknown), &client{})
	if e := apierror.From(err); e == nil || e.HTTPStatus() != 400 || e.Message != "Conversation roles must alternate" {
		t.Errorf("Serve() = %v, want the tokenizer's 400", err)
	}
	f.settled()
}

// Where no engine is asked, a refusal that it would share is the answer; any other leaves a choice by load.
func TestAChoiceIsRefusedOnlyWhereTheEngineWouldRefuse(t *testing.T) {
	for name, tc := range map[string]struct {
		body    string
		route   openai.Route
		status  int
		refusal string
		cut     bool
		want    int // the status of the refusal; 0 for a choice
	}{
		"a template's refusal":    {unknown, openai.RouteChat, 400, roles, false, 400},
		"an unprocessable body":   {unknown, openai.RouteChat, 422, roles, false, 422},
		"a model that is served":  {unknown, openai.RouteChat, 404, noModel, false, 0},
		"ids of the client's own": {unknownID, openai.RouteChat, 400, roles, false, 0},
		"a beam search":           {unknown[:len(unknown)-1] + `,"use_beam_search":true}`, openai.RouteChat, 400, roles, false, 0},
		"another format":          {`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`, openai.RouteMessages, 400, roles, false, 0},
		"a body that is cut":      {unknown[:len(unknown)-8], openai.RouteChat, 400, roles, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			f.engines[0].tokenizes(text(tc.status, tc.refusal))
			a, err := f.router.Choose(t.Context(), &intake.Question{Input: intake.Input{Body: []byte(tc.body), Route: tc.route, Truncated: tc.cut}})
			e := apierror.From(err)
			switch {
			case tc.want == 0 && (err != nil || a.Replica == nil || len(a.Encoding.IDs) != 0 || a.Encoding.Reason != "refused"):
				t.Errorf("Choose() = %+v, %v; want a choice without ids", a, err)
			case tc.want != 0 && (e == nil || e.HTTPStatus() != tc.want):
				t.Errorf("Choose() = %v, want %d", err, tc.want)
			}
			if f.engines[0].asked() == 0 {
				t.Error("no tokenizer was asked")
			}
			f.settled()
		})
	}
}
