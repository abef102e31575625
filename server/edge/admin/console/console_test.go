package console_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/edge/admin/console"
)

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	h := console.Handler()
	for _, path := range []string{"/console/", "/console/app.js", "/console/style.css", "/console/chart.js", "/console/parts.js", "/console/detail.js", "/console/router.js", "/console/tables.js", "/console/traces.js", "/console/tables.css", "/console/icon.svg"} {
		w := get(h, path)
		if w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Errorf("%s: status %d, %d bytes", path, w.Code, w.Body.Len())
		}
		for _, elsewhere := range []string{"https://", "//cdn", "@import", "innerHTML", "eval("} {
			if strings.Contains(w.Body.String(), elsewhere) {
				t.Errorf("%s contains %q", path, elsewhere)
			}
		}
		if !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s has no content security policy", path)
		}
	}
	if w := get(h, "/console"); w.Code != http.StatusMovedPermanently {
		t.Errorf("/console: status %d", w.Code)
	}
}
