package tokenizertest

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

// misbehave does the fault and reports whether it answered.
func (r *Replica) misbehave(w http.ResponseWriter, req *http.Request, f Fault) bool {
	raw := func(status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // the caller may have left
	}
	switch f {
	case FaultNone:
		return false
	case FaultHang:
		<-req.Context().Done()
	case FaultSlow:
		select {
		case <-time.After(time.Second):
		case <-req.Context().Done():
		}
		return false
	case FaultHalfBody:
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"count":3,"tokens":[1,2`) // the connection breaks by intention
		panic(http.ErrAbortHandler)
	case FaultWrongJSON:
		raw(http.StatusOK, `{"count":3,"ids":[1,2,3]}`)
	case FaultNotJSON:
		raw(http.StatusOK, "<html>ok</html>")
	case Fault500:
		fail(w, http.StatusInternalServerError, "InternalServerError", "boom")
	case FaultStringCode:
		raw(http.StatusInternalServerError, `{"error":{"message":"boom","type":"server_error","param":null,"code":"server_error"}}`)
	case FaultStringErr:
		raw(http.StatusServiceUnavailable, `{"error":"The model is currently scaling. Please try again later."}`)
	case Fault429:
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusTooManyRequests, "RateLimitError", "slow down")
	case Fault404:
		fail(w, http.StatusNotFound, "NotFoundError", "The model `x` does not exist.")
	case Fault400:
		fail(w, http.StatusBadRequest, "BadRequestError", "template: conversation roles must alternate")
	case Fault401:
		raw(http.StatusUnauthorized, `{"error":"Unauthorized"}`)
	case FaultEmpty:
		raw(http.StatusOK, `{"count":0,"max_model_len":131072,"tokens":[],"token_strs":null,"token_ids":[]}`)
	case FaultNoRoute:
		raw(http.StatusNotFound, `{"detail":"Not Found"}`)
	default:
		panic(fmt.Sprintf("unknown fault %q", f))
	}
	return true
}
