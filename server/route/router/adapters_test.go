package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// TestAdaptersGoToEveryReplica: loading and unloading a LoRA adapter reaches every replica of the pool, or
// the one that is named; one refusal is the answer, and one that cannot be reached is no success.
func TestAdaptersGoToEveryReplica(t *testing.T) {
	const body = `{"lora_name":"a","lora_path":"/adapters/a"}`
	ok := text(200, "Success: LoRA adapter 'a' added successfully.", "Content-Type", "text/plain")
	refused := text(400, `{"error":{"message":"already loaded","type":"InvalidUserInput","param":null,"code":400}}`)
	for _, tt := range []struct {
		name, body, pin string
		steps           []http.HandlerFunc
		status          int // 0: an error of the router's
		reason          apierror.Reason
		says, each      string
		asked           int
	}{
		{"all", body, "", []http.HandlerFunc{ok, ok, ok}, 200, 0, "Success", "r0=200 r1=200 r2=200", 3},
		{"one refuses", body, "", []http.HandlerFunc{ok, refused, ok}, 400, 0, "already loaded", "r0=200 r1=400 r2=200", 3},
		{"one breaks off", body, "", []http.HandlerFunc{ok, ok, cut}, 0, apierror.UpstreamError, "r2=unreachable", "", 3},
		{"one is named", body, "r1", []http.HandlerFunc{cut, ok, cut}, 200, 0, "Success", "r1=200", 1},
		{"nobody has that name", body, "r9", nil, 0, apierror.NoReplica, "no replica", "", 0},
		{"another model", `{"model":"x","lora_name":"a"}`, "", nil, 0, apierror.ModelNotFound, "x", "", 0},
		{"the model by name", `{"model":"m","lora_name":"a"}`, "", []http.HandlerFunc{ok, ok, ok}, 200, 0, "Success", "r0=200 r1=200 r2=200", 3},
		{"no JSON", `{`, "", nil, 0, apierror.InvalidBody, "", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, 3, nil)
			for i, step := range tt.steps {
				f.engines[i].does(step)
			}
			before := f.requests()
			call := chat(tt.body)
			call.Path = "/v1/load_lora_adapter"
			if tt.pin != "" {
				call.Options.Pinned, call.Options.PinnedRank = replica.ID(tt.pin), -1
			}
			to := &client{}
			err := f.router.Adapter(t.Context(), call, to)
			if n := f.requests() - before; n != tt.asked {
				t.Errorf("%d replicas were asked, want %d", n, tt.asked)
			}
			if tt.status == 0 {
				if reasonOf(err) != tt.reason || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %v, want %v with %q", err, tt.reason, tt.says)
				}
				return
			}
			// The router's own record has it where the engine said so.
			held := 0
			for _, d := range f.chooser.AdapterDemands() {
				held += len(d.Resident)
			}
			if want := strings.Count(tt.each, "=200"); held != want {
				t.Errorf("the record has it on %d replicas, want %d", held, want)
			}
			if err != nil || to.status != tt.status || !strings.Contains(to.body.String(), tt.says) || to.header.Get(router.HeaderAdapter) != tt.each {
				t.Errorf("%v, %d %q, %q", err, to.status, to.body.String(), to.header.Get(router.HeaderAdapter))
			}
		})
	}
}
