package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// senders and health are the surface's interfaces as functions.
type (
	senders func(*http.Request, caller.Roles) error
	health  func() error
)

func (f senders) Allow(r *http.Request, roles caller.Roles) error { return f(r, roles) }
func (f health) Ready() error                                     { return f() }

// Every route asks for its roles, but those that are open on purpose.
func TestEveryRouteHasARole(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	var who *caller.Caller
	p := Params{Health: health(func() error { return nil }), Metrics: ok, RPCs: ok, Senders: senders(func(_ *http.Request, roles caller.Roles) error {
		switch {
		case who == nil:
			return apierror.New(apierror.Unauthenticated, "who", nil)
		case !who.May(roles):
			return apierror.New(apierror.PermissionDenied, "no", nil)
		}
		return nil
	})}
	for _, keyed := range []bool{false, true} {
		c := Config{Profiles: true, Console: true, KeyedMetrics: keyed, KeyedHealth: keyed}
		h := Handler(c, p)
		for _, r := range routes(c, p) {
			method, path, found := strings.Cut(r.pattern, " ")
			if !found {
				method, path = http.MethodGet, r.pattern
			}
			path = strings.ReplaceAll(strings.TrimSuffix(path, "{$}"), "{verb}", "gpu-a:drain")
			ask := func(by *caller.Caller) int {
				who = by
				w := httptest.NewRecorder()
				req := httptest.NewRequest(method, path+"?seconds=0", nil)
				if strings.HasPrefix(path, "/debug/") { // profiles take their time: only whether they are let in counts
					if err := p.Senders.Allow(req, r.roles); err != nil {
						return apierror.From(err).HTTPStatus()
					}
					return http.StatusOK
				}
				h.ServeHTTP(w, req)
				return w.Code
			}
			open := path == "/" || !keyed && (path == "/healthz" || path == "/livez" || path == "/readyz" || path == "/metrics")
			if got := ask(nil); open != (got < 400) || !open && got != http.StatusUnauthorized {
				t.Errorf("%s without a key: %d", r.pattern, got)
			}
			if open {
				continue
			}
			for _, role := range []caller.Roles{caller.Infer, caller.Route, caller.Forward, caller.Gateway, caller.Default} {
				if got := ask(&caller.Caller{Roles: role}); got != http.StatusForbidden {
					t.Errorf("%s with %s: %d", r.pattern, role, got)
				}
			}
			adminOnly := strings.HasPrefix(path, "/debug/") || strings.HasSuffix(path, ":drain")
			wantObserver := adminOnly == (ask(&caller.Caller{Roles: caller.Observe}) == http.StatusForbidden)
			if !wantObserver || ask(&caller.Caller{Roles: caller.Admin}) >= 400 {
				t.Errorf("%s: observe %d, admin %d", r.pattern, ask(&caller.Caller{Roles: caller.Observe}), ask(&caller.Caller{Roles: caller.Admin}))
			}
		}
	}
	h := Handler(DefaultConfig(), p)
	who = &caller.Caller{Roles: caller.Admin}
	for _, verb := range []string{"drain", "undrain"} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/kvpilot/v1/replicas/gpu-a:"+verb, nil)); w.Code >= 400 {
			t.Errorf("an operator's %s: %d", verb, w.Code)
		}
	}
	for _, path := range []string{"/kvpilot/v1/replicas", "/kvpilot/v1/replicas/gpu-a", "/kvpilot/v1/replicas/gpu-a:other", "/kvpilot/v1/config:reload"} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil)); w.Code < 400 {
			t.Errorf("POST %s changes something through the admin address: %d", path, w.Code)
		}
	}
	h = Handler(Config{Profiles: true}, p)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap"} {
		who = &caller.Caller{Roles: caller.Observe}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil)); w.Code != http.StatusForbidden {
			t.Errorf("%s for an observer: %d", path, w.Code)
		}
	}
	w := httptest.NewRecorder()
	if Handler(DefaultConfig(), p).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)); w.Code != http.StatusNotFound {
		t.Errorf("profiles are on by default: %d", w.Code)
	}
}
