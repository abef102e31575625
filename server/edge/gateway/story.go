package gateway

import (
	"net/http"
	"strings"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/observe/span"
)

// story is the server span's account of an HTTP request.
type story struct {
	method, path, scheme, version string
	requestID, route              string
	status                        int
	fault, words                  string // the kind of our own fault, and its public words
}

var stories = sync.Pool{New: func() any { return &story{} }}

// describe notes the facts for the span of a request.
func describe(rq *request, r *http.Request) *story {
	st := stories.Get().(*story)
	*st = story{
		method: knownMethod(rq.call.Method), path: rq.call.Path, scheme: "http", version: strings.TrimPrefix(r.Proto, "HTTP/"),
		requestID: strings.Clone(rq.call.RequestID), route: rq.routed.pattern, status: rq.out.outcome(),
	}
	if r.TLS != nil {
		st.scheme = "https"
	}
	if e := rq.out.failed; e != nil && e.Fault() == apierror.FaultOurs {
		st.fault, st.words = apierror.Name(e.Reason), e.OwnWords()
	}
	return st
}

// Free implements span.Story.
func (st *story) Free() {
	*st = story{}
	stories.Put(st)
}

// Draw implements span.Story.
func (st *story) Draw(on *span.Canvas) {
	on.Set(span.HTTPMethod.String(st.method), span.URLPath.String(st.path), span.URLScheme.String(st.scheme), span.HTTPVersion.String(st.version),
		span.HTTPStatus.Int(st.status), span.RequestID.String(st.requestID))
	if st.route != "" {
		on.Set(span.HTTPRoute.String(st.route))
	}
	if st.fault != "" {
		on.Set(span.ErrorType.String(st.fault))
		on.Fail(st.words)
	}
}
