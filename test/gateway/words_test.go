package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/server/route/quota"
)

// Each gateway, in its own dialect: the subset as a list and as text, the refusals 503 and 429 with their reasons, and the headers of both
// generations.
func TestEachDialectHasSubsetsRefusalsAndHeaders(t *testing.T) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			secure := strings.HasPrefix(d.name, "envoy-ai-gateway")
			s := start(t, 3, func(c *config.Config) {
				c.Tenants = quota.Config{"acme": {RequestsPerSecond: 0.001, RequestBurst: 1}}
				if secure {
					c.EPP.TLS = extproc.TLSSelfSigned
				}
				if !d.single {
					c.EPP.Endpoints = 3
				}
			})
			for _, form := range []string{"list", "string"} {
				spoken := d
				spoken.subset = form
				g := dial(t, s.EPP, secure, spoken)
				for _, at := range s.Replicas {
					question := ask("the same text", true)
					question.allowed = []string{"10.0.0.1:8000", endpoint(at)}
					if out, err := g.do(t.Context(), question); err != nil || out.status != 200 || out.endpoint != endpoint(at) {
						t.Errorf("%s: %v, sent to %+v, want %s", form, err, out, at)
					}
				}
				question := ask("nowhere", false)
				question.allowed = []string{"10.0.0.1:8000"}
				refused(t, g, question, 503, "rejected-no-endpoints")
			}
			g := dial(t, s.EPP, secure, d)
			for _, generation := range []string{"x-llm-d-", "x-gateway-"} {
				question := sent{path: "/v1/chat/completions", body: strings.Replace(ask("x", false).body, `"sim"`, `"any"`, 1), header: map[string]string{
					generation + "model-name-rewrite": "sim", generation + "inference-objective": "unknown",
				}}
				if out, err := g.do(t.Context(), question); err != nil || out.status != 200 || !strings.Contains(out.body, `"model":"sim"`) {
					t.Errorf("%smodel-name-rewrite: %v, %+v", generation, err, out)
				}
			}
			limited := ask("x", false)
			limited.header = map[string]string{"x-gateway-inference-fairness-id": "acme"}
			if out, err := g.do(t.Context(), limited); err != nil || out.status != 200 {
				t.Errorf("the tenant's first request: %v, %+v", err, out)
			}
			out := refused(t, g, limited, 429, "")
			if out != nil && out.header.Get("Retry-After") == "" {
				t.Errorf("the refusal does not say when to come back: %v", out.header)
			}
			settled(t, s)
		})
	}
}

// refused expects an immediate answer with a status and, where there is one, a reason.
func refused(t *testing.T, g *gateway, question sent, status int, reason string) *got {
	t.Helper()
	out, err := g.do(t.Context(), question)
	if err != nil || !out.local || out.status != status || !json.Valid([]byte(out.body)) || out.header.Get("X-Llm-D-Request-Dropped-Reason") != reason {
		t.Errorf("%v, %+v; want %d %q", err, out, status, reason)
		return nil
	}
	return out
}

// A gateway that shows the picker no bodies gets a replica by load, at once.
func TestAGatewayThatShowsHeadersAlone(t *testing.T) {
	s := start(t, 2)
	for _, response := range []string{"seen", "not seen"} {
		d := dialect{request: none, response: duplex, piece: 100}
		if response == "not seen" {
			d.response = none
		}
		g := dial(t, s.EPP, false, d)
		for _, stream := range []bool{false, true} {
			if out, err := g.do(t.Context(), ask("hidden", stream)); err != nil || out.status != 200 || out.header.Get("X-Kvpilot-Replica") == "" {
				t.Errorf("the answer's body %s, stream %v: %v, %+v", response, stream, err, out)
			}
		}
	}
	settled(t, s)
}
