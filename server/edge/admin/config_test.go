package admin

import (
	"strings"
	"testing"
)

func TestLinksAreTemplatesOfWebAddresses(t *testing.T) {
	for name, test := range map[string]struct {
		links Links
		want  string // in the error; empty for none
	}{
		"none":              {Links{}, ""},
		"both":              {Links{"https://jaeger.example/trace/{trace_id}", "http://grafana:3000/d/kvpilot?var-model={model}&var-replica={replica}"}, ""},
		"a plain dashboard": {Links{"", "https://grafana.example/d/kvpilot"}, ""},
		"no id":             {Links{"https://jaeger.example/search", ""}, "links.trace: must contain {trace_id}"},
		"a script":          {Links{"javascript:alert('{trace_id}')", ""}, "links.trace: must be a URL"},
		"no host":           {Links{"", "/d/kvpilot"}, "links.dashboard: must be a URL"},
		"an unknown name":   {Links{"", "https://grafana.example/d/{tenant}"}, "links.dashboard: must be a URL"},
	} {
		err := Config{Links: test.links}.Validate()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
