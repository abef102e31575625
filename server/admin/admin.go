package admin

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
)

// Params are what the surface shows.
type Params struct {
	// Ready says why the router should get no requests now; nil when it should.
	Ready func() error
	// Metrics serves the metrics.
	Metrics http.Handler
	// Console serves /console; nil serves none.
	Console http.Handler
	// Authorized says whether a request may see more than health and metrics; nil lets all.
	Authorized func(*http.Request) bool
}

// Handler makes the surface.
func Handler(c Config, p Params) http.Handler {
	mux := http.NewServeMux()
	live := func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok", "") }
	mux.HandleFunc("GET /healthz", live)
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := p.Ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready", err.Error())
			return
		}
		answer(w, http.StatusOK, "ready", "")
	})
	mux.Handle("GET /metrics", p.Metrics)
	if c.Console && p.Console != nil {
		mux.Handle("/console", p.guard(p.Console))
		mux.Handle("/console/", p.guard(p.Console))
		mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusFound))
	}
	if c.Profiles {
		inner := http.NewServeMux()
		inner.HandleFunc("/debug/pprof/", pprof.Index)
		inner.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		inner.HandleFunc("/debug/pprof/profile", pprof.Profile)
		inner.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		inner.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.Handle("/debug/pprof/", p.guard(inner))
	}
	return mux
}

// guard asks for authorization.
func (p Params) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.Authorized != nil && !p.Authorized(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="kvpilot", charset="UTF-8"`)
			answer(w, http.StatusUnauthorized, "unauthorized", "an API key is needed")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, state, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// the client may be gone; there is nobody else to tell
	_ = json.NewEncoder(w).Encode(struct {
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{state, reason})
}
