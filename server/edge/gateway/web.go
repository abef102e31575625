package gateway

import (
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

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
