package admin

import (
	"io"
	"net/http"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// rootDocument is the answer to a look at the address alone.
const rootDocument = `{"service":"kvpilot","surface":"admin","description":"health at /healthz, /livez and /readyz, metrics at /metrics, the console at /console/ unless it is turned off; ` +
	`requests for models go to the REST address (listen.http)","docs":"https://github.com/kvpilot/kvpilot/blob/main/docs/operations.md"}` + "\n"

// serveRoot sends browsers to the console, and describes the surface to others.
func serveRoot(console bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if console && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, "/console/", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, rootDocument) // the client may be gone
	})
}

// rejectModels answers clients of models that have the wrong port, in the form of OpenAI's errors.
func rejectModels(w http.ResponseWriter, _ *http.Request) {
	e := apierror.New(apierror.RouteNotFound, "this is the admin address; requests for models go to the REST address (listen.http)", nil)
	contentType, body := e.Body(apierror.OpenAI)
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(e.HTTPStatus())
	_, _ = w.Write(body) // the client may be gone
}
