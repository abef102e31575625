package doctor

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/directory/directorytest"
)

func TestDirectoryOfCachesBelowTheGPU(t *testing.T) {
	t.Parallel()
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(60 * time.Millisecond)
		new(directorytest.LMCache).ServeHTTP(w, r)
	})
	broken := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"chunks": "many"}`)) })
	for name, tt := range map[string]struct {
		service  http.Handler // nil: none listens
		settings string
		label    string
		want     want
	}{
		"none":                        {nil, "", "", want{OK, "", "directory.kind is empty", ""}},
		"LMCache":                     {new(directorytest.LMCache), "kind: lmcache, budget: 1s", "kv_instance: node", want{OK, "sim", "LMCache's coordinator", ""}},
		"Mooncake":                    {new(directorytest.Conductor), "kind: mooncake, budget: 1s", "kv_instance: node", want{OK, "sim", "2 replicas have the label kv_instance", ""}},
		"Mooncake, an older version":  {&directorytest.Conductor{Older: true}, "kind: mooncake, budget: 1s", "kv_instance: node", want{OK, "sim", "Mooncake's conductor", ""}},
		"nothing listens":             {nil, "kind: lmcache", "kv_instance: node", want{Fail, "sim", "refused", "start the service"}},
		"late":                        {slow, "kind: lmcache", "kv_instance: node", want{Warn, "sim", "ms", "directory.budget"}},
		"the other kind":              {new(directorytest.Conductor), "kind: lmcache, budget: 1s", "kv_instance: node", want{Fail, "sim", "refuses the question", "directory.kind"}},
		"no answer that can be read":  {broken, "kind: lmcache, budget: 1s", "kv_instance: node", want{Fail, "sim", "cannot be used", "directory.chunk_tokens"}},
		"chunks of another length":    {new(directorytest.LMCache), "kind: lmcache, budget: 1s, chunk_tokens: 512", "kv_instance: node", want{Fail, "sim", "with chunks of 512", "directory.chunk_tokens"}},
		"chunks that split blocks":    {new(directorytest.LMCache), "kind: lmcache, budget: 1s, chunk_tokens: 100", "kv_instance: node", want{Fail, "sim", "chunk_tokens: 100", "chunk_size of LMCache"}},
		"replicas that it knows not":  {new(directorytest.LMCache), "kind: lmcache, budget: 1s", "", want{Warn, "sim", "never asked", "kv_instance"}},
		"a service that refuses this": {http.NotFoundHandler(), "kind: mooncake, budget: 1s", "kv_instance: node", want{Fail, "sim", "refuses the question", "directory.url"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(tt.service)
			t.Cleanup(srv.Close)
			if tt.service == nil {
				srv.Close()
			}
			w := world{}
			if tt.settings != "" {
				w.yaml = "directory: {url: '" + srv.URL + "', " + tt.settings + "}\n"
			}
			if tt.label != "" {
				w.replica = labelled(tt.label)
			}
			asked := false
			for _, r := range Local(t.Context(), w.start(t)) {
				if r.Check == "directory" {
					asked = true
					judge(t, []Result{r}, map[string]want{"directory": tt.want})
				}
			}
			if !asked {
				t.Error("there is no such check")
			}
		})
	}
}
