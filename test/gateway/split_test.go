package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/test/stack"
)

// router calls the router and returns the answer.
func router(t *testing.T, s *stack.Stack, path, body string) string {
	t.Helper()
	resp, err := http.Post("http://"+s.HTTP+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s %v", path, resp.StatusCode, text, err)
	}
	return string(text)
}

// The sidecar of the replica that gets a request learns which one computes its prompt, whatever its client said.
func TestTheSidecarLearnsThePrefiller(t *testing.T) {
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			s := start(t, 2, func(c *config.Config) {
				c.EPP.Prefiller = on
				for i, role := range []string{"prefill", "decode"} {
					c.Registry.Replicas[i].Labels = map[string]string{replica.LabelConnector: "nixl", replica.LabelRole: role}
				}
			})
			for i := range 60 { // the replica that decodes writes many answers
				_, rest, _ := strings.Cut(router(t, s, "/kvpilot/v1/choose", fmt.Sprintf(`{"model":"sim","lease":"3600s","reports":"REPORTS_ALL","token_ids":{"ids":[%d,2,3]}}`, i)), `"reservation_id":"`)
				id, _, _ := strings.Cut(rest, `"`)
				router(t, s, "/kvpilot/v1/reservations/"+id+":report", `{"first_token":{}}`)
				t.Cleanup(func() {
					router(t, s, "/kvpilot/v1/reservations/"+id+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`)
				})
			}
			ids := make([]string, 6000)
			for i := range ids {
				ids[i] = strconv.Itoa(i + 1)
			}
			g := dial(t, s.EPP, false, plainDuplex)
			question := sent{path: "/v1/completions", body: `{"model":"sim","max_tokens":5,"stream":true,"prompt":[` + strings.Join(ids, ",") + `]}`, header: map[string]string{"x-prefiller-host-port": "10.0.0.1:1"}}
			out, err := g.do(t.Context(), question)
			if err != nil || out.status != 200 || out.endpoint != endpoint(s.Replicas[1]) {
				t.Fatalf("%v, %+v", err, out)
			}
			want := map[bool]string{true: endpoint(s.Replicas[0])}[on]
			if got := out.request.Header.Get("X-Prefiller-Host-Port"); got != want {
				t.Errorf("the prompt is computed by %q, want %q", got, want)
			}
			eventually(t, "nothing but the answers is booked", func() bool { return metric(t, s, "kvpilot_load_reservations") == 60 })
		})
	}
}
