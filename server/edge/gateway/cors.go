package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// cors allows pages of the configured origins to call the router.
type cors struct {
	all     bool
	origins []string
}

func newCORS(origins []string) *cors {
	return &cors{all: slices.Contains(origins, "*"), origins: origins}
}

// answer sets the headers for the request's origin and reports whether it was a preflight that
// needs nothing more.
func (c *cors) answer(h http.Header, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || len(c.origins) == 0 {
		return false
	}
	h.Add("Vary", "Origin")
	if !c.all && !slices.Contains(c.origins, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "*")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", "600")
	return true
}

// answerOptions lists the methods of a path that has a route; it leaves other paths alone.
func (g *Gateway) answerOptions(rq *request, r *http.Request) bool {
	if r.Method != http.MethodOptions {
		return false
	}
	allowed := g.routes.allowed(r.URL)
	if len(allowed) == 0 {
		return false
	}
	rq.w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
	return true
}
