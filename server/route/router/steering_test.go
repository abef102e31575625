package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const markedID = "___prefill_addr_10.0.0.1:20001___decode_addr_10.0.0.2:20001_0123456789abcdef0123456789abcdef"

func TestSteeringDoesNotReachEngines(t *testing.T) {
	f := start(t, 1, nil)
	var id, rank string
	f.script(f.engines[0].read(func(w http.ResponseWriter, r *http.Request) {
		id, rank = r.Header.Get("X-Request-Id"), r.Header.Get("X-Data-Parallel-Rank")
		text(200, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)(w, r)
	}))
	send := func(steers bool) (body string, to *client) {
		call := chat(`{"model":"m","kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.9.9.9"},"messages":[{"role":"user","content":"hi"}],"vllm_xargs":{"ec_transfer_params":"x"}}`)
		call.RequestID, call.Steers = markedID, steers
		call.Header = http.Header{"X-Data-Parallel-Rank": {"3"}}
		to = &client{}
		must(t, f.router.Serve(t.Context(), call, to))
		bodies := f.engines[0].bodies()
		return string(bodies[len(bodies)-1]), to
	}
	body, to := send(false)
	if body != `{"model":"m","messages":[{"role":"user","content":"hi"}],"vllm_xargs":{}}` || strings.Contains(id, "addr") || id == "" || rank != "" {
		t.Errorf("the engine got %s, request id %q, rank %q", body, id, rank)
	}
	if got := to.header.Get("X-Request-Id"); got != markedID {
		t.Errorf("the client gets the request id %q", got)
	}
	if got := to.header.Get("X-Kvpilot-Dropped"); got != "kv_transfer_params, ec_transfer_params, request_id" {
		t.Errorf("the client hears that %q was dropped", got)
	}
	if id != to.header.Get("X-Kvpilot-Decision") {
		t.Errorf("the engine's id %q is not the decision's", id)
	}
	body, to = send(true)
	if !strings.Contains(body, "10.9.9.9") || !strings.Contains(body, "ec_transfer_params") || id != markedID || rank != "3" || to.header.Get("X-Kvpilot-Dropped") != "" {
		t.Errorf("with the right to steer, the engine got %s, request id %q, rank %q", body, id, rank)
	}
}

// What is routed is what the engine gets: a chat's own ids survive, and a dropped member does not keep the router from handing over ids.
func TestARequestWithoutItsSteeringIsAnOrdinaryOne(t *testing.T) {
	f := start(t, 1, nil)
	f.script(f.engines[0].read(text(200, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)))
	call := chat(`{"model":"m","kv_transfer_params":{"prompt_token_ids":[1,2,3],"remote_port":1},"messages":[{"role":"user","content":"hi"}]}`)
	call.Route = openai.RouteChat
	must(t, f.router.Serve(t.Context(), call, &client{}))
	if got := string(f.engines[0].bodies()[0]); got != `{"model":"m","kv_transfer_params":{"prompt_token_ids":[1,2,3]},"messages":[{"role":"user","content":"hi"}]}` {
		t.Errorf("the engine got %s", got)
	}
}
