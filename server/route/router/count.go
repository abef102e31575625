package router

import (
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// Counter counts requests as their clients see them, each once, whatever number of replicas is tried for it. It must not block.
type Counter interface {
	// Served counts a request that ended after a replica was chosen for it; failed says that its client got a failure.
	Served(failed bool)
	// Unserved counts a request that was answered with 429 or a server error before any replica was chosen, by the error's reason.
	Unserved(reason string)
	// Retried counts an attempt that is repeated or continued on another replica.
	Retried()
}

// countEnd counts a request that this router sent; e is its error, nil when it has none.
func (r *Router) countEnd(d *delivery, e *apierror.Error) {
	if r.Count != nil && d.chosen {
		r.Count.Served(isFailure(e))
		return
	}
	r.countUnserved(d, e)
}

// countUnserved counts a request that no replica was chosen for, by a fault that is not its own.
func (r *Router) countUnserved(d *delivery, e *apierror.Error) {
	if r.Count != nil && !d.chosen && isFailure(e) {
		r.Count.Unserved(apierror.Name(e.Reason))
	}
}

// isFailure reports whether e is a failure that the request is not to blame for: 429 or a server error.
func isFailure(e *apierror.Error) bool {
	if e == nil || e.Fault() == apierror.FaultGone {
		return false
	}
	status := e.HTTPStatus()
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

func (r *Router) countRetry() {
	if r.Count != nil {
		r.Count.Retried()
	}
}
