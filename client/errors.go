package client

import (
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// domain marks kvpilot's own errors.
const domain = "kvpilot"

// Reason names the fault that err reports; unspecified when it is not one of kvpilot's.
func Reason(err error) kvpilotv1.ErrorReason {
	for _, d := range details(err) {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return kvpilotv1.ErrorReason(kvpilotv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
		}
	}
	return kvpilotv1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// RetryAfter is how long the router asks to wait before the next try; false when it does not.
func RetryAfter(err error) (time.Duration, bool) {
	for _, d := range details(err) {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// Body returns the replica's own answer, when the error carries it: its JSON, unchanged.
func Body(err error) []byte {
	for _, d := range details(err) {
		if b, ok := d.(*httpbody.HttpBody); ok {
			return b.GetData()
		}
	}
	return nil
}

func details(err error) []any {
	s, ok := status.FromError(err)
	if !ok {
		return nil
	}
	return s.Details()
}
