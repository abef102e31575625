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

// countEnd counts a request that this router sent; public is its error, nil when it has none.
func (e *ends) countEnd(d *delivery, public *apierror.Error) {
	if e.count != nil && d.chosen {
		e.count.Served(isFailure(public))
		return
	}
	e.countUnserved(d, public)
}

// countUnserved counts a request that no replica was chosen for, by a fault that is not its own.
func (e *ends) countUnserved(d *delivery, public *apierror.Error) {
	if e.count != nil && !d.chosen && isFailure(public) {
		e.count.Unserved(apierror.Name(public.Reason))
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

// again counts an attempt that is repeated or continued on another replica.
func (rt *retries) again() {
	if rt.count != nil {
		rt.count.Retried()
	}
}
