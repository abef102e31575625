package apierror

import (
	"errors"
	"net/http"
	"strconv"

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
// and clients of other languages refuse header blocks above 8 KiB.
const maxDetail = 4 << 10

// GRPCStatus is what gRPC callers see. grpc-go and status.FromError use it by themselves.
func (e *Error) GRPCStatus() *status.Status {
	code, _, _ := e.codes()
	info := &errdetails.ErrorInfo{Reason: Name(e.Reason), Domain: Domain}
	details := []protoadapt.MessageV1{info}
	if e.Param != "" || e.Answer != nil {
		info.Metadata = map[string]string{}
	}
	if e.Param != "" {
		info.Metadata[metaParam] = e.Param
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
			if d.GetDomain() == Domain {
				e.Reason = Named(d.GetReason())
				e.Param = d.GetMetadata()[metaParam]
				if n, bad := strconv.Atoi(d.GetMetadata()[metaStatus]); bad == nil && n >= 100 && n <= 599 {
					e.answer().Status = n
				}
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

// upstreamReason names an engine's refusal for gRPC callers and logs.
func upstreamReason(httpStatus int) Reason {
	switch {
	case httpStatus == http.StatusNotFound:
		return ModelNotFound
	case httpStatus == http.StatusRequestEntityTooLarge:
		return BodyTooLarge
	case httpStatus == http.StatusTooManyRequests:
		return Overloaded
	case httpStatus == http.StatusNotImplemented, httpStatus == http.StatusMethodNotAllowed:
		return NotSupported
	case httpStatus >= 400 && httpStatus < 500:
		return InvalidBody
	}
	return UpstreamError
}
