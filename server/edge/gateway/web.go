package gateway

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

// newCrossOrigin makes the check that keeps other sites' pages from changing anything.
func newCrossOrigin(origins []string) (*http.CrossOriginProtection, error) {
	c := http.NewCrossOriginProtection()
	for _, origin := range origins {
		if origin == "*" {
			continue
		}
		if err := c.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("gateway.allow_origins: %w", err)
		}
	}
	return c, nil
}

// checkOrigin rejects requests of pages of other origins. "*" allows all pages to call engines, but
// not to change the fleet or the router's bookings.
func (g *Gateway) checkOrigin(r *http.Request, found *route) error {
	if g.cors.all && !strings.HasPrefix(r.URL.Path, "/kvpilot/") {
		return nil
	}
	if found != nil && found.upgrade { // browsers let any page open a WebSocket, and read it
		r = r.WithContext(r.Context())
		r.Method = http.MethodPost
	}
	if err := g.crossOrigin.Check(r); err != nil {
		return apierror.New(apierror.PermissionDenied, "pages of other origins may not call this router (gateway.allow_origins)", err)
	}
	return nil
}

// RefuseHost answers requests for a host that is not the router's.
func (g *Gateway) RefuseHost() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := apierror.New(apierror.PermissionDenied, "the name in the header Host is not one of this router's: use localhost, or add the name to listen.hosts", nil)
		contentType, text := e.Body(dialectOf(r.URL.Path))
		setErrorHeaders(w.Header(), e)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(e.HTTPStatus())
		_, _ = w.Write(text) // the client may be gone
	})
}

// checkTarget rejects what HTTP/2 carries and a request line cannot. It would fail at the replica's connection.
func checkTarget(r *http.Request) error {
	err := httpcall.CheckBytes(r.RequestURI)
	if err == nil {
		err = httpcall.CheckQuery(r.URL.RawQuery)
	}
	if err != nil {
		return apierror.New(apierror.InvalidBody, err.Error(), nil)
	}
	return nil
}
