package apierror

import (
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// Reason names a public fault; it is the contract's enum.
type Reason = kvpilotv1.ErrorReason

// The reasons, under shorter names.
const (
	Unspecified          = kvpilotv1.ErrorReason_ERROR_REASON_UNSPECIFIED
	InvalidBody          = kvpilotv1.ErrorReason_ERROR_REASON_INVALID_BODY
	ModelNotFound        = kvpilotv1.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND
	NoReplica            = kvpilotv1.ErrorReason_ERROR_REASON_NO_REPLICA
	Overloaded           = kvpilotv1.ErrorReason_ERROR_REASON_OVERLOADED
	DeadlineUnreachable  = kvpilotv1.ErrorReason_ERROR_REASON_DEADLINE_UNREACHABLE
	BodyTooLarge         = kvpilotv1.ErrorReason_ERROR_REASON_BODY_TOO_LARGE
	Unauthenticated      = kvpilotv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	UpstreamUnreachable  = kvpilotv1.ErrorReason_ERROR_REASON_UPSTREAM_UNREACHABLE
	UpstreamError        = kvpilotv1.ErrorReason_ERROR_REASON_UPSTREAM_ERROR
	UpstreamStreamBroken = kvpilotv1.ErrorReason_ERROR_REASON_UPSTREAM_STREAM_BROKEN
	TokenizeRefused      = kvpilotv1.ErrorReason_ERROR_REASON_TOKENIZE_REFUSED
	ReservationNotFound  = kvpilotv1.ErrorReason_ERROR_REASON_RESERVATION_NOT_FOUND
	ReservationEnded     = kvpilotv1.ErrorReason_ERROR_REASON_RESERVATION_ENDED
	DecisionNotFound     = kvpilotv1.ErrorReason_ERROR_REASON_DECISION_NOT_FOUND
	Cancelled            = kvpilotv1.ErrorReason_ERROR_REASON_CANCELLED
	DeadlineExceeded     = kvpilotv1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED
	ShuttingDown         = kvpilotv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN
	NotSupported         = kvpilotv1.ErrorReason_ERROR_REASON_NOT_SUPPORTED
	Internal             = kvpilotv1.ErrorReason_ERROR_REASON_INTERNAL
	ReplicaNotFound      = kvpilotv1.ErrorReason_ERROR_REASON_REPLICA_NOT_FOUND
	RouteNotFound        = kvpilotv1.ErrorReason_ERROR_REASON_ROUTE_NOT_FOUND
	MethodNotAllowed     = kvpilotv1.ErrorReason_ERROR_REASON_METHOD_NOT_ALLOWED
	PermissionDenied     = kvpilotv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	Conflict             = kvpilotv1.ErrorReason_ERROR_REASON_CONFLICT
	UnsupportedMediaType = kvpilotv1.ErrorReason_ERROR_REASON_UNSUPPORTED_MEDIA_TYPE
	BodyTimeout          = kvpilotv1.ErrorReason_ERROR_REASON_BODY_TIMEOUT
	UpstreamRefused      = kvpilotv1.ErrorReason_ERROR_REASON_UPSTREAM_REFUSED
	RateLimitExceeded    = kvpilotv1.ErrorReason_ERROR_REASON_RATE_LIMIT_EXCEEDED
	RouterUnreachable    = kvpilotv1.ErrorReason_ERROR_REASON_ROUTER_UNREACHABLE
	VersionNotFound      = kvpilotv1.ErrorReason_ERROR_REASON_VERSION_NOT_FOUND
)

// StatusClientClosed is the HTTP status of a request that the client gave up; no client sees it.
const StatusClientClosed = 499

// The error types of OpenAI's API that kvpilot uses.
const (
	typeInvalid    = "invalid_request_error"
	typeAuth       = "authentication_error"
	typePermission = "permission_error"
	typeNotFound   = "not_found_error"
	typeRateLimit  = "rate_limit_error"
	typeServer     = "server_error"
)

// codesOf gives a reason's gRPC code, HTTP status and OpenAI error type. It is the only place
// where they meet.
func codesOf(r Reason) (rpc codes.Code, httpStatus int, openAIType string) {
	switch r {
	case InvalidBody, TokenizeRefused:
		return codes.InvalidArgument, http.StatusBadRequest, typeInvalid
	case UpstreamRefused: // callers see the engine's own status, see refusedCode
		return codes.FailedPrecondition, http.StatusBadRequest, typeInvalid
	case ModelNotFound, RouteNotFound, ReplicaNotFound, ReservationNotFound, DecisionNotFound, VersionNotFound:
		return codes.NotFound, http.StatusNotFound, typeNotFound
	case ReservationEnded:
		return codes.FailedPrecondition, http.StatusConflict, typeInvalid
	case Conflict:
		return codes.AlreadyExists, http.StatusConflict, typeInvalid
	case NoReplica, ShuttingDown, RouterUnreachable:
		return codes.Unavailable, http.StatusServiceUnavailable, typeServer
	case Overloaded, DeadlineUnreachable, RateLimitExceeded:
		return codes.ResourceExhausted, http.StatusTooManyRequests, typeRateLimit
	case BodyTooLarge:
		return codes.ResourceExhausted, http.StatusRequestEntityTooLarge, typeInvalid
	case UnsupportedMediaType:
		return codes.InvalidArgument, http.StatusUnsupportedMediaType, typeInvalid
	case MethodNotAllowed:
		return codes.Unimplemented, http.StatusMethodNotAllowed, typeInvalid
	case NotSupported:
		return codes.Unimplemented, http.StatusNotImplemented, typeInvalid
	case Unauthenticated:
		return codes.Unauthenticated, http.StatusUnauthorized, typeAuth
	case PermissionDenied:
		return codes.PermissionDenied, http.StatusForbidden, typePermission
	case UpstreamUnreachable, UpstreamError, UpstreamStreamBroken:
		return codes.Unavailable, http.StatusBadGateway, typeServer
	case Cancelled:
		return codes.Canceled, StatusClientClosed, typeInvalid
	case BodyTimeout:
		return codes.DeadlineExceeded, http.StatusRequestTimeout, typeInvalid
	case DeadlineExceeded:
		return codes.DeadlineExceeded, http.StatusGatewayTimeout, typeServer
	case Internal, Unspecified:
	}
	return codes.Internal, http.StatusInternalServerError, typeServer
}

// Name gives a reason without its enum prefix, as ErrorInfo and headers carry it: "NO_REPLICA".
func Name(r Reason) string {
	name := r.String()
	if short, ok := strings.CutPrefix(name, "ERROR_REASON_"); ok {
		return short
	}
	return "UNSPECIFIED" // a number that this build has no name for
}

// named is the inverse of Name; an unknown name is Unspecified.
func named(name string) Reason {
	return Reason(kvpilotv1.ErrorReason_value["ERROR_REASON_"+name])
}

// code is the machine-readable word in an OpenAI error body: "no_replica".
func code(r Reason) string { return strings.ToLower(Name(r)) }
