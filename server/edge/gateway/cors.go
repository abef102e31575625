package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// origins are the origins of the pages that may call the router.
type origins struct {
	all  bool
	list []string
	// changes keeps pages of other origins from changing anything.
	changes *http.CrossOriginProtection
}

func newOrigins(list []string) (*origins, error) {
	o := &origins{all: slices.Contains(list, "*"), list: list, changes: http.NewCrossOriginProtection()}
	for _, origin := range list {
		if origin == "*" {
			continue
		}
		if err := o.changes.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("gateway.allow_origins: %w", err)
		}
	}
	return o, nil
}

// answer sets the headers for the request's origin and reports whether it was a preflight that
// needs nothing more.
func (o *origins) answer(h http.Header, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || len(o.list) == 0 {
		return false
	}
	h.Add("Vary", "Origin")
	if !o.all && !slices.Contains(o.list, origin) {
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

// check rejects requests of pages of other origins. "*" allows all pages to call engines, but
// not to change the fleet or the router's bookings.
func (o *origins) check(r *http.Request, takes taking) error {
	if o.all && !strings.HasPrefix(r.URL.Path, "/kvpilot/") {
		return nil
	}
	if takes == takesUpgrade { // browsers let any page open a WebSocket, and read it
		r = r.WithContext(r.Context())
		r.Method = http.MethodPost
	}
	if err := o.changes.Check(r); err != nil {
		return apierror.New(apierror.PermissionDenied, "pages of other origins may not call this router (gateway.allow_origins)", err)
	}
	return nil
}
