package router_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// row is a body or a fault, and what must be seen of it.
type row struct {
	route    openai.Route
	body     string
	cut      bool // it is handed over as a part of a body, to be chosen for
	tokenize http.HandlerFunc
	status   int
	// source and reason are the labels of kvpilot.tokenizer.encodings, and source the span's; a reason is told by an event
	// kvpilot.fallback.
	source, reason string
}

func rows() map[string]row {
	empty := text(200, `{"count":0,"max_model_len":4096,"tokens":[]}`)
	return map[string]row{
		"chat":                              {openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":"a"}]}`, false, nil, 200, "tokenize", ""},
		"a prompt of text":                  {openai.RouteCompletions, `{"model":"m","prompt":"hello"}`, false, nil, 200, "tokenize", ""},
		"no messages and a prompt":          {openai.RouteAny, `{"model":"m","messages":[],"prompt":"hi"}`, true, nil, 200, "tokenize", ""},
		"messages of null and a prompt":     {openai.RouteAny, `{"model":"m","messages":null,"prompt":"hi"}`, true, nil, 200, "tokenize", ""},
		"a batch":                           {openai.RouteCompletions, `{"model":"m","prompt":["a","b"]}`, false, nil, 200, "tokenize", ""},
		"ids":                               {openai.RouteCompletions, `{"model":"m","prompt":[1,2,3]}`, false, nil, 200, "body", ""},
		"only an image":                     {openai.RouteChat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`, false, nil, 200, "none", "unmappable"},
		"no messages":                       {openai.RouteChat, `{"model":"m","messages":[]}`, false, nil, 200, "none", "no_prompt"},
		"an empty prompt":                   {openai.RouteCompletions, `{"model":"m","prompt":""}`, false, nil, 200, "none", "no_prompt"},
		"no key":                            {openai.RouteCompletions, `{"model":"m"}`, false, nil, 200, "none", "no_prompt"},
		"no object":                         {openai.RouteChat, `[1]`, false, nil, 400, "", ""},
		"bad JSON":                          {openai.RouteChat, `{"model"`, false, nil, 400, "", ""},
		"cut, and no JSON":                  {openai.RouteAny, `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a ", 200), true, strict, 200, "tokenize", ""},
		"cut in front of all":               {openai.RouteAny, `{"mess`, true, nil, 200, "none", "no_prompt"},
		"no ids come back":                  {openai.RouteCompletions, `{"model":"m","prompt":"hello"}`, false, empty, 200, "none", "empty"},
		"the tokenizer fails":               {openai.RouteCompletions, `{"model":"m","prompt":"hello"}`, false, text(500, "broken"), 200, "none", "status"},
		"the tokenizer refuses":             {openai.RouteCompletions, `{"model":"m","prompt":"hello"}`, false, text(400, roles), 200, "client_fault", "refused"},
		"no ids, so the least loaded takes": {openai.RouteCompletions, `{"model":"m","prompt":"hello"}`, false, text(404, `{"detail":"Not Found"}`), 200, "none", "unsupported"},
	}
}

// TestEveryRowShowsWhatBecameOfItsPrompt: the status, the counter and the span of each row.
func TestEveryRowShowsWhatBecameOfItsPrompt(t *testing.T) {
	t.Parallel()
	for name, r := range rows() {
		t.Run(name, func(t *testing.T) {
			reader := metric.NewManualReader()
			k := startTraced(t, 1, sdktrace.AlwaysSample(), func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
				c := tokenizer.DefaultConfig()
				p.Tokens = tokenizer.New(c, tokenizer.Params{Scope: scope.Measured(metric.NewMeterProvider(metric.WithReader(reader)))})
			})
			if r.tokenize != nil {
				k.engines[0].tokenizes(r.tokenize)
			}
			to := &client{}
			var err error
			tree := k.tree(func(ctx context.Context) {
				if r.cut {
					_, err = k.router.Choose(ctx, &intake.Question{Input: intake.Input{Body: []byte(r.body), Route: r.route, Truncated: true, FullSize: 5000}})
					to.status = 200
					return
				}
				call := chat(r.body)
				call.Route = r.route
				err = k.router.Serve(ctx, call, to)
			})
			status := to.status
			if e := apierror.From(err); e != nil {
				status = e.HTTPStatus()
			}
			if status != r.status {
				t.Fatalf("status %d (%v), want %d", status, err, r.status)
			}
			counted := encodings(t, reader)
			if r.source == "" {
				if len(counted) != 0 {
					t.Errorf("counted %v, want nothing", counted)
				}
				return
			}
			if want := r.source + "/" + r.reason; counted[want] != 1 || len(counted) != 1 {
				t.Errorf("counted %v, want one %s", counted, want)
			}
			if fellBack := strings.Contains(tree, "tokenize *fallback"); !strings.Contains(tree, "tokenize") || fellBack != (r.reason != "") {
				t.Errorf("the spans are\n%swith a fallback: %v", tree, fellBack)
			}
		})
	}
}

// encodings are the prompts that were counted, by source and reason.
func encodings(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &all))
	counted := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "kvpilot.tokenizer.encodings" {
				for _, p := range sum.DataPoints {
					source, _ := p.Attributes.Value(attribute.Key("source"))
					reason, _ := p.Attributes.Value(attribute.Key("reason"))
					if p.Value > 0 {
						counted[source.AsString()+"/"+reason.AsString()] += p.Value
					}
				}
			}
		}
	}
	return counted
}
