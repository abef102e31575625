package admin

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/admin/console"
)

// Health is the router's.
type Health interface {
	// Ready returns why the router should get no requests now; nil when it should.
	Ready() error
}

// Senders checks the senders of requests.
type Senders interface {
	// Allow returns an error of package apierror if the sender of a request has none of the roles.
	Allow(r *http.Request, roles caller.Roles) error
}

// Params are the parts that the surface shows.
type Params struct {
	Health Health
	// Metrics serves the metrics.
	Metrics http.Handler
	// RPCs serves the contract's RPCs under their REST paths, for the console. It checks the roles that each of them needs.
	RPCs http.Handler
	// Senders may be nil: all are allowed.
	Senders Senders
}

// route is one pattern of the surface with the roles of which a caller needs one. An open route
// has no roles and needs no credentials.
type route struct {
	pattern string
	open    bool
	roles   caller.Roles
	handler http.Handler
}

// routes are all routes of the surface.
func routes(c Config, p Params) []route {
	live := func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok", "") }
	ready := func(w http.ResponseWriter, _ *http.Request) {
		if err := p.Health.Ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready", err.Error())
			return
		}
		answer(w, http.StatusOK, "ready", "")
	}
	list := []route{
		{"GET /healthz", !c.KeyedHealth, caller.Observe, http.HandlerFunc(live)},
		{"GET /livez", !c.KeyedHealth, caller.Observe, http.HandlerFunc(live)},
		{"GET /readyz", !c.KeyedHealth, caller.Observe, http.HandlerFunc(ready)},
		{"GET /metrics", !c.KeyedMetrics, caller.Observe, p.Metrics},
		{"GET /{$}", true, 0, serveRoot(c.Console)},
	}
	if c.Console {
		page := console.Handler()
		list = append(list,
			route{"/console", false, caller.Observe, page},
			route{"/console/", false, caller.Observe, page},
			// The RPCs that read, the RPC that makes dry runs, and the only RPCs here that change something: Drain and Undrain.
			route{"GET /kvpilot/v1/", false, caller.Observe, p.RPCs},
			route{"POST /kvpilot/v1/choose", false, caller.Observe, p.RPCs},
			route{"POST /kvpilot/v1/replicas/{verb}", false, caller.Admin, only(p.RPCs, ":drain", ":undrain")})
	}
	if c.Profiles {
		for pattern, h := range map[string]http.HandlerFunc{
			"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
			"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
		} {
			list = append(list, route{pattern, false, caller.Admin, h})
		}
	}
	return list
}

// only serves the paths that end with one of the suffixes.
func only(h http.Handler, suffixes ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(r.PathValue("verb"), s) }) {
			reject(w, apierror.New(apierror.RouteNotFound, "the admin address has no such route", nil))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Handler makes the surface.
func Handler(c Config, p Params) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", rejectModels)
	for _, r := range routes(c, p) {
		if r.open {
			mux.Handle(r.pattern, r.handler)
		} else {
			mux.Handle(r.pattern, p.guard(r))
		}
	}
	return mux
}

// guard asks for the route's roles.
func (p Params) guard(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if p.Senders != nil {
			if err := p.Senders.Allow(req, r.roles); err != nil {
				reject(w, apierror.From(err))
				return
			}
		}
		r.handler.ServeHTTP(w, req)
	})
}

// reject answers with the error. Browsers then ask for a key, which they send as the password of basic authentication.
func reject(w http.ResponseWriter, e *apierror.Error) {
	if e.Reason == apierror.Unauthenticated {
		w.Header().Set("WWW-Authenticate", `Basic realm="kvpilot", charset="UTF-8"`)
	}
	answer(w, e.HTTPStatus(), apierror.Name(e.Reason), e.Message)
}

func answer(w http.ResponseWriter, status int, state, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// the client may be gone
	_ = json.NewEncoder(w).Encode(struct {
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{state, reason})
}
