package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/gen/openapi"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

// The paths that describe the REST surface, without credentials.
const (
	rootPath    = "/"
	openapiPath = "/openapi.json"
)

// rootDocument is the answer to a look at the address alone.
const rootDocument = `{"service":"kvpilot","surface":"REST","description":"an inference router: the APIs of OpenAI and Anthropic at /v1 (an OpenAI SDK's base URL ends in /v1), its own at /kvpilot/v1",` +
	`"openapi":"/openapi.json","docs":"https://github.com/kvpilot/kvpilot/blob/main/docs/api.md"}` + "\n"

// serveFront answers the paths that describe the surface, and reports whether r was for one.
func serveFront(rq *request, r *http.Request) bool {
	if readMethod(r.Method) != http.MethodGet {
		return false
	}
	switch r.URL.Path {
	case rootPath:
		rq.describe(rootPath, []byte(rootDocument))
	case openapiPath:
		rq.describe(openapiPath, openapi.Document)
	default:
		return false
	}
	return true
}

func (rq *request) describe(pattern string, document []byte) {
	rq.routed.pattern = pattern
	rq.out.whole(http.StatusOK, typeJSON, document)
}

const versionPrefix = "/v1"

// hint is the end of the error for a path without a route: the route that is meant, and where the base URL is wrong.
func (t *routes) hint(path string) string {
	whole := path
	for strings.HasPrefix(whole, versionPrefix+versionPrefix+"/") {
		whole = whole[len(versionPrefix):]
	}
	switch {
	case whole != path && t.serves(whole):
		return "; the base URL ends in /v1 twice, or the client adds it to one that has it: use " + whole
	case t.serves(versionPrefix + path):
		return "; the base URL lacks /v1: use " + versionPrefix + path
	}
	if at := strings.Index(path, versionPrefix+"/"); at > 0 && t.serves(path[at:]) {
		return "; the base URL has a path before /v1: use " + path[at:]
	}
	known := make([]string, 0, len(t.exact))
	for pattern := range t.exact {
		known = append(known, pattern)
	}
	slices.Sort(known)
	return suggest.Question(suggest.Near(path, known))
}

// serves reports whether a path has a route.
func (t *routes) serves(path string) bool { return len(t.allowed(&url.URL{Path: path})) > 0 }

// RefuseHost answers requests for a host that is not the router's.
func (g *Gateway) RefuseHost() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := apierror.New(apierror.PermissionDenied, "the name in the header Host is not one of this router's: use localhost, or add the name to listen.hosts", nil)
		contentType, text := e.Body(httpcall.DialectOf(r.URL.Path))
		httpcall.SetErrorHeaders(w.Header(), e)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(e.HTTPStatus())
		_, _ = w.Write(text) // the client may be gone
	})
}

// checkTarget rejects targets that HTTP/2 carries and a request line cannot. They would fail at the replica's connection.
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

const healthPath = "/health"

// isHealth reports whether a request asks for health as engines are asked: load balancers and clients
// that point at the router instead of an engine keep their probes. Such a request
// needs no key, makes no span and counts in no metric.
func isHealth(r *http.Request) bool {
	switch r.URL.Path {
	case healthPath:
		return readMethod(r.Method) == http.MethodGet
	case "/ping": // SageMaker's probe, which vLLM takes by either method
		return readMethod(r.Method) == http.MethodGet || r.Method == http.MethodPost
	}
	return false
}

// serveHealth answers 200 without a body while requests can be taken, and 503 with the reason.
func serveHealth(rq *request, of Health) {
	if of != nil {
		if err := of.Ready(); err != nil {
			rq.fail(apierror.New(apierror.NoReplica, err.Error(), nil))
			return
		}
	}
	rq.out.w.Header().Set("Content-Length", "0")
	rq.out.start(http.StatusOK)
}
