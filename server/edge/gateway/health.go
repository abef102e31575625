package gateway

import (
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

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
