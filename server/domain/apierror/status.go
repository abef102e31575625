package apierror

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The ErrorInfo metadata keys.
const (
	metaParam  = "param"
	metaStatus = "http_status"
)

// maxDetail bounds an engine's answer in a status detail, in bytes: details travel in the trailers,
// and clients of other languages reject header blocks above 8 KiB.
const maxDetail = 4 << 10

// GRPCStatus is the status that gRPC callers see. grpc-go and status.FromError use it by themselves.
func (e *Error) GRPCStatus() *status.Status {
	code, _, _ := e.codes()
	if e.Reason == UpstreamRefused && e.Answer != nil {
		code = refusedCode(e.Answer.Status)
	}
	info := &errdetails.ErrorInfo{Reason: Name(e.Reason), Domain: domain}
	details := []protoadapt.MessageV1{info}
	if e.Param != "" || e.Answer != nil || len(e.Header) > 0 {
		info.Metadata = map[string]string{}
	}
	if e.Param != "" {
		info.Metadata[metaParam] = e.Param
	}
	for name, values := range e.Header {
		info.Metadata[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	if bad := e.badRequest(code); bad != nil {
		details = append(details, bad)
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if a := e.Answer; a != nil {
		info.Metadata[metaStatus] = strconv.Itoa(a.Status)
		if len(a.Body) <= maxDetail {
			details = append(details, &httpbody.HttpBody{ContentType: a.ContentType, Data: a.Body})
		}
	}
	st, err := status.New(code, e.Message).WithDetails(details...)
	if err != nil {
		return status.New(code, e.Message) // a detail that cannot be marshalled must not hide the fault
	}
	return st
}

// badRequest names the fields at fault; nil without one.
func (e *Error) badRequest(code codes.Code) *errdetails.BadRequest {
	if code != codes.InvalidArgument || len(e.Violations) == 0 && e.Param == "" {
		return nil
	}
	out := &errdetails.BadRequest{}
	for _, v := range e.Violations {
		out.FieldViolations = append(out.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: strings.ToValidUTF8(v.Field, "�"), Description: strings.ToValidUTF8(v.Description, "�"),
		})
	}
	if len(e.Violations) == 0 {
		out.FieldViolations = []*errdetails.BadRequest_FieldViolation{{Field: e.Param, Description: e.Message}}
	}
	return out
}

// fromStatus recovers an Error from a gRPC status that GRPCStatus made (for callers of our own
// services) or that the contract's rules made. It returns nil for any other error.
func fromStatus(err error) *Error {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return nil
	}
	st := carrier.GRPCStatus()
	if st == nil {
		return nil
	}
	e := &Error{Message: st.Message(), cause: err}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				e.Reason = named(d.GetReason())
				e.Param = d.GetMetadata()[metaParam]
				if n, bad := strconv.Atoi(d.GetMetadata()[metaStatus]); bad == nil && n >= 100 && n <= 599 {
					e.answer().Status = n
				}
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, Violation{Field: v.GetField(), Description: v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = max(0, d.GetRetryDelay().AsDuration())
		case *httpbody.HttpBody:
			a := e.answer()
			a.ContentType, a.Body = d.GetContentType(), d.GetData()
		}
	}
	if e.Reason != Unspecified {
		e.unavailable = e.Reason == Overloaded && st.Code() == codes.Unavailable
		return e
	}
	switch st.Code() {
	case codes.Canceled:
		return New(Cancelled, "the request was cancelled", err)
	case codes.DeadlineExceeded:
		return New(DeadlineExceeded, "the deadline passed", err)
	default:
		return nil // a foreign status may hold addresses: hidden
	}
}

func (e *Error) answer() *Answer {
	if e.Answer == nil {
		e.Answer = &Answer{Status: http.StatusInternalServerError}
	}
	return e.Answer
}

// upstreamReason names an engine's refusal for callers and logs: as far as the status, and for a 404
// the body, show it.
func upstreamReason(httpStatus int, body []byte) Reason {
	switch httpStatus {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return InvalidBody
	case http.StatusNotFound:
		if aboutModel(body) {
			return ModelNotFound
		}
	case http.StatusRequestEntityTooLarge:
		return BodyTooLarge
	case http.StatusUnsupportedMediaType:
		return UnsupportedMediaType
	case http.StatusTooManyRequests:
		return Overloaded
	case http.StatusMethodNotAllowed:
		return MethodNotAllowed
	case http.StatusNotImplemented:
		return NotSupported
	}
	if httpStatus >= 400 && httpStatus < 500 {
		return UpstreamRefused
	}
	return UpstreamError
}

// aboutModel reports whether an engine's 404 says that it does not know the model: by the field that
// it names, by its code, or, in versions that give neither, by vLLM's sentence.
func aboutModel(body []byte) bool {
	type fault struct {
		Message string `json:"message"`
		Param   any    `json:"param"`
		Code    any    `json:"code"`
	}
	var shape struct {
		fault
		Error json.RawMessage `json:"error"`
	}
	if len(body) > longestFault || json.Unmarshal(body, &shape) != nil {
		return false
	}
	named := shape.fault
	if len(shape.Error) > 0 && json.Unmarshal(shape.Error, &named) != nil {
		return false
	}
	return named.Param == "model" || named.Code == "model_not_found" ||
		strings.HasPrefix(named.Message, "The model `") && strings.Contains(named.Message, "` does not exist")
}

// refusedCode is the gRPC code that comes closest to an engine's refusal.
func refusedCode(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound, http.StatusGone:
		return codes.NotFound
	case http.StatusRequestTimeout:
		return codes.DeadlineExceeded
	case http.StatusConflict:
		return codes.Aborted
	}
	return codes.FailedPrecondition
}
