package gateway

import (
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

var errNoAnswer = errors.New("the handler ended without an answer")

// public is the error to show. Errors of the services are public already; the rest are the generated code's own complaints
// about a body, a path or a query, and their text shows nothing
// but the client's input.
func public(err error) *apierror.Error {
	e := apierror.From(err)
	if e.Reason != apierror.Internal {
		return e
	}
	st, ok := status.FromError(err)
	if _, ours := errors.AsType[*apierror.Error](err); ours || !ok || st.Code() != codes.InvalidArgument {
		return e
	}
	return unreadable(st.Message(), err)
}

// clientLeft is the error of a request whose client has closed its connection, or only its sending side: TCP does not say
// which, and most that send a FIN are gone. A client that reads on learns what it did.
func clientLeft(err error) *apierror.Error {
	return apierror.New(apierror.Cancelled, "the client closed its connection, or the sending side of it, before the answer was complete", err)
}

// unreadable is the error for a body, a path or a query that has the wrong form.
func unreadable(message string, err error) *apierror.Error {
	message = strings.ReplaceAll(message, "\u00a0", " ") // protojson varies its spaces
	field, message := plain(strings.TrimPrefix(message, "proto: "))
	return apierror.New(apierror.InvalidBody, clip(message), err, apierror.WithParam(field))
}

// otherMethod stands for all methods that are not HTTP's own, as OpenTelemetry's conventions have it.
const otherMethod = "_OTHER"

// knownMethod keeps invented methods out of metrics and spans.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return otherMethod
}

// below reports whether path is root or under it.
func below(path, root string) bool {
	rest, ok := strings.CutPrefix(path, root)
	return ok && (rest == "" || rest[0] == '/')
}

// readMethod treats HEAD as GET: net/http leaves the body out.
func readMethod(method string) string {
	if method == http.MethodHead {
		return http.MethodGet
	}
	return method
}
