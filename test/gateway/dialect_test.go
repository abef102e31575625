package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/test/stack"
)

func TestEachGatewayIsServedInItsDialect(t *testing.T) {
	t.Parallel()
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			secure := strings.HasPrefix(d.name, "envoy-ai-gateway")
			s := start(t, 2, func(c *config.Config) {
				c.Registry.Aliases = map[string]string{"gpt": "sim"}
				if secure {
					c.EPP.TLS = extproc.TLSSelfSigned
				}
				if !d.single {
					c.EPP.Endpoints = 3
				}
			})
			g := dial(t, s.EPP, secure, d)
			for _, stream := range []bool{false, true} {
				out, err := g.do(t.Context(), ask("hello", stream))
				if err != nil {
					t.Fatal(err)
				}
				if out.status != 200 || stream != strings.HasSuffix(out.body, "data: [DONE]\n\n") || out.header.Get("X-Kvpilot-Replica") == "" {
					t.Errorf("stream %v: %d %v %q", stream, out.status, out.header, out.body)
				}
			}
			whole := ask(strings.Repeat("a long prompt ", 20_000), false)
			if out, err := g.do(t.Context(), whole); err != nil || out.status != 200 {
				t.Errorf("a body of %d bytes: %v", len(whole.body), err)
			}
			renamed := sent{path: "/v1/chat/completions", body: `{"model":"gpt","messages":[{"role":"user","content":"hi"}],"max_tokens":2}`}
			if out, err := g.do(t.Context(), renamed); err != nil || out.status != 200 || !strings.Contains(out.body, `"model":"sim"`) {
				t.Errorf("an alias: %v, %+v", err, out)
			}
			if out, err := g.do(t.Context(), sent{method: "GET", path: "/v1/models"}); err != nil || !strings.Contains(out.body, `"sim"`) {
				t.Errorf("GET: %v, %+v", err, out)
			}
			if out, err := g.do(t.Context(), sent{path: "/v1/messages", body: `{"model":"nope","messages":[]}`}); err != nil || !out.local || out.status != 404 || !strings.HasPrefix(out.body, `{"type":"error"`) {
				t.Errorf("an unknown model: %v, %+v", err, out)
			}
			if d.request == duplex {
				withTrailers := ask("trailers", true)
				withTrailers.trailers = true
				if out, err := g.do(t.Context(), withTrailers); err != nil || out.status != 200 {
					t.Errorf("trailers: %v", err)
				}
			}
			settled(t, s)
		})
	}
}

func TestSubsetsLimitTheChoice(t *testing.T) {
	s := start(t, 3)
	for _, form := range []string{"list", "string"} {
		g := dial(t, s.EPP, false, dialect{request: duplex, response: duplex, subset: form, piece: 100})
		for _, at := range s.Replicas {
			question := ask("the same text", false)
			question.allowed = []string{"10.0.0.1:8000", endpoint(at)}
			out, err := g.do(t.Context(), question)
			if err != nil || out.endpoint != endpoint(at) {
				t.Errorf("%s: %v, sent to %+v; want %s", form, err, out, at)
			}
		}
		question := ask("hi", false)
		question.allowed = []string{"127.0.0.1"} // without a port: each of them
		if out, err := g.do(t.Context(), question); err != nil || out.status != 200 {
			t.Errorf("%s: an IP address: %v", form, err)
		}
		for _, allowed := range [][]string{{"10.0.0.1:8000"}, {}, {"127.0.0.1:1", "nonsense"}} {
			question.allowed = allowed
			out, err := g.do(t.Context(), question)
			if err != nil || out.status != 503 || out.header.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-no-endpoints" || !json.Valid([]byte(out.body)) {
				t.Errorf("%s: %v: %v, %+v", form, allowed, err, out)
			}
		}
	}
	if n := metric(t, s, "kvpilot_epp_dropped_total", `reason="rejected-no-endpoints"`); n != 6 {
		t.Errorf("%v requests were dropped for want of endpoints, want 6", n)
	}
	settled(t, s)
}

func TestASubsetIsIgnoredWhereTheOperatorSaysSo(t *testing.T) {
	s := start(t, 1, func(c *config.Config) { c.EPP.Subset = false })
	g := dial(t, s.EPP, false, dialect{request: duplex, response: duplex, subset: "list", piece: 100})
	question := ask("hi", false)
	question.allowed = []string{"10.0.0.1:8000"}
	if out, err := g.do(t.Context(), question); err != nil || out.status != 200 {
		t.Errorf("%v, %+v", err, out)
	}
}

func TestRunnersUpFollowTheChosenReplica(t *testing.T) {
	s := start(t, 3, func(c *config.Config) { c.EPP.Endpoints = 2 })
	g := dial(t, s.EPP, false, dialect{request: duplex, response: duplex, piece: 100})
	stream, err := g.client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := g.ask(stream, ask("hi", false))
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Split(out.request.Header.Get(headerEndpoint), ",")
	if len(list) != 2 || list[0] == list[1] || !slices.Contains(s.Replicas, "http://"+list[0]) || !slices.Contains(s.Replicas, "http://"+list[1]) {
		t.Errorf("the gateway is named %q", list)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	settled(t, s)
}

// The booking must be where the work is: the gateway's fallback takes it along.
func TestTheBookingMovesToTheReplicaThatServed(t *testing.T) {
	s := start(t, 2, func(c *config.Config) {
		c.EPP.Endpoints = 2
		for i := range c.Registry.Replicas {
			c.Registry.Replicas[i].ID = replica.ID("r" + fmtID(i))
		}
	})
	g := dial(t, s.EPP, false, dialect{request: duplex, response: duplex, reportsServed: true, piece: 100})
	for range 2 {
		question := ask("somewhere", true)
		question.elsewhere = []string{endpoint(s.Replicas[0]), endpoint(s.Replicas[1])}
		out, err := g.do(t.Context(), question)
		if err != nil || out.status != 200 {
			t.Fatal(err)
		}
		if want := "r" + fmtID(slices.Index(s.Replicas, "http://"+out.endpoint)); out.header.Get("X-Kvpilot-Replica") != want {
			t.Errorf("the client reads %q, want %q", out.header.Get("X-Kvpilot-Replica"), want)
		}
	}
	if n := metric(t, s, "kvpilot_epp_served_elsewhere_total"); n != 2 {
		t.Errorf("%v requests were served elsewhere, want both", n)
	}
	settled(t, s)
}

func fmtID(i int) string { return string(rune('0' + i)) }

// A request takes the same decision whichever way it comes.
func TestDecisionsAreThoseOfProxyMode(t *testing.T) {
	asked := func(s *stack.Stack, send func(text string) (overlap, reason string)) (list []string) {
		for turn := range 4 {
			for chat := range 5 {
				overlap, reason := send(strings.Repeat("word of chat "+fmtID(chat)+" ", 40*(turn+1)))
				list = append(list, overlap+" "+reason)
			}
			settled(t, s)
			eventually(t, "the index has what the replicas have published", func() bool {
				return metric(t, s, "kvpilot_kvevents_batches_total") >= published(t, s)
			})
		}
		return list
	}
	one := func(c *config.Config) { c.Chooser.Weights = nil }
	proxy, picker := start(t, 1, one), start(t, 1, one)
	g := dial(t, picker.EPP, false, dialect{request: duplex, response: duplex, piece: 1000})
	direct := asked(proxy, func(text string) (string, string) {
		h := post(t, "http://"+proxy.HTTP+"/v1/chat/completions", fmt.Sprintf(chat, text, true))
		return h.Get("X-Kvpilot-Overlap-Tokens"), h.Get("X-Kvpilot-Choice")
	})
	through := asked(picker, func(text string) (string, string) {
		out, err := g.do(t.Context(), ask(text, true))
		if err != nil {
			t.Fatal(err)
		}
		return out.header.Get("X-Kvpilot-Overlap-Tokens"), out.header.Get("X-Kvpilot-Choice")
	})
	if !slices.Equal(direct, through) {
		t.Errorf("proxy mode decided\n%q\nthe picker\n%q", direct, through)
	}
	if last := direct[len(direct)-1]; strings.HasPrefix(last, "0 ") || strings.HasPrefix(last, " ") {
		t.Errorf("nothing of the last turn was cached: %q", direct)
	}
}
