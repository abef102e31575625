package gateway

import (
	"net/http"

	"github.com/kvpilot/kvpilot/gen/openapi"
)

// openapiPath serves the description of the REST surface, without credentials.
const openapiPath = "/openapi.json"

func serveOpenAPI(rq *request) {
	h := rq.w.Header()
	h.Set("Content-Type", typeJSON)
	h.Set("Content-Length", itoa(int64(len(openapi.Document))))
	rq.start(http.StatusOK)
	_ = rq.write(openapi.Document) // the client may be gone
}
