package apierror_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

func TestEveryReasonHasCodesOfItsOwn(t *testing.T) {
	for number, name := range kvpilotv1.ErrorReason_name {
		r := apierror.Reason(number)
		rpc, httpStatus, kind := apierror.Codes(r)
		if internal := r == apierror.Internal || r == apierror.Unspecified; internal != (rpc == codes.Internal) {
			t.Errorf("%s maps to %s: the switch in Codes has no case for it", name, rpc)
		}
		if httpStatus < 400 || httpStatus > 599 || kind == "" {
			t.Errorf("%s: HTTP status %d, type %q", name, httpStatus, kind)
		}
		if got := apierror.Named(apierror.Name(r)); got != r {
			t.Errorf("Named(Name(%s)) = %s", name, got)
		}
	}
}

func TestFromHidesWhatIsNotPublic(t *testing.T) {
	secret := "dial tcp 10.1.2.3:8000: connection refused"
	for name, tc := range map[string]struct {
		err  error
		want apierror.Reason
	}{
		"plain":           {errors.New(secret), apierror.Internal},
		"foreign status":  {status.Error(codes.NotFound, secret), apierror.Internal},
		"wrapped ours":    {fmt.Errorf("route: %w", apierror.New(apierror.NoReplica, "no replica", errors.New(secret))), apierror.NoReplica},
		"cancelled":       {fmt.Errorf("%s: %w", secret, context.Canceled), apierror.Cancelled},
		"deadline":        {fmt.Errorf("%s: %w", secret, context.DeadlineExceeded), apierror.DeadlineExceeded},
		"status canceled": {status.Error(codes.Canceled, secret), apierror.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			e := apierror.From(tc.err)
			if e.Reason != tc.want {
				t.Fatalf("reason = %s, want %s", e.Reason, tc.want)
			}
			for _, shown := range [][]byte{e.JSON(apierror.OpenAI), e.JSON(apierror.Anthropic), e.Events(apierror.OpenAI), []byte(e.GRPCStatus().String())} {
				if bytes.Contains(shown, []byte("10.1.2.3")) {
					t.Errorf("shows an address: %s", shown)
				}
			}
			if !errors.Is(e, tc.err) && !errors.Is(tc.err, e) {
				t.Errorf("the cause is lost: %v", e)
			}
		})
	}
	if apierror.From(nil) != nil {
		t.Error("From(nil) is not nil")
	}
}

func TestStatusCarriesReasonAndRetry(t *testing.T) {
	e := apierror.New(apierror.Overloaded, "the queue is full", errors.New("hidden"),
		apierror.WithRetryAfter(1500*time.Millisecond), apierror.WithParam("model"))
	st := status.Convert(e)
	if st.Code() != codes.ResourceExhausted || st.Message() != "the queue is full" {
		t.Fatalf("status = %v", st)
	}
	var info *errdetails.ErrorInfo
	var retry *errdetails.RetryInfo
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	if info.GetReason() != "OVERLOADED" || info.GetDomain() != "kvpilot" || info.GetMetadata()["param"] != "model" {
		t.Errorf("ErrorInfo = %v", info)
	}
	if retry.GetRetryDelay().AsDuration() != 1500*time.Millisecond {
		t.Errorf("RetryInfo = %v", retry)
	}
	if got := e.RetryAfterHeader(); got != "2" {
		t.Errorf("Retry-After = %q, want 2 (rounded up)", got)
	}
	back := apierror.From(st.Err())
	if back.Reason != apierror.Overloaded || back.RetryAfter != e.RetryAfter || back.Param != "model" || back.Message != e.Message {
		t.Errorf("read back from the wire: %+v", back)
	}
}

// What the router itself lacks is 503 and keeps its reason, also through gRPC.
func TestWaits16TheRoutersOwnOverloadIs503(t *testing.T) {
	e := apierror.From(apierror.New(apierror.Overloaded, "no room", nil, apierror.WithUnavailable()).GRPCStatus().Err())
	if e.Reason != apierror.Overloaded || e.HTTPStatus() != 503 || e.GRPCStatus().Code() != codes.Unavailable || e.Fault() != apierror.FaultOurs {
		t.Errorf("%v: %d, %s", e, e.HTTPStatus(), e.GRPCStatus().Code())
	}
	if e := apierror.From(apierror.New(apierror.Overloaded, "full", nil).GRPCStatus().Err()); e.HTTPStatus() != 429 {
		t.Errorf("a full queue: %d", e.HTTPStatus())
	}
}

func TestUpstreamAnswerIsVerbatim(t *testing.T) {
	body := []byte(`{"error":{"message":"This model's maximum context length is 10 tokens.","type":"BadRequestError","param":null,"code":400}}`)
	e := apierror.Upstream(http.StatusBadRequest, "application/json; charset=utf-8", body)
	contentType, got := e.Body(apierror.OpenAI)
	if contentType != "application/json; charset=utf-8" || &got[0] != &body[0] {
		t.Errorf("body = %q %s, want the engine's own, not copied", contentType, got)
	}
	if e.HTTPStatus() != 400 || e.Message != "This model's maximum context length is 10 tokens." {
		t.Errorf("status %d, message %q", e.HTTPStatus(), e.Message)
	}
	back := apierror.From(status.Convert(e).Err())
	if back.Answer == nil || back.Answer.Status != 400 || !bytes.Equal(back.Answer.Body, body) {
		t.Errorf("after a gRPC hop: %+v", back.Answer)
	}
	large := apierror.Upstream(422, "text/plain", bytes.Repeat([]byte("x"), 1<<20))
	for _, d := range status.Convert(large).Details() {
		if _, ok := d.(*httpbody.HttpBody); ok {
			t.Error("a 1 MiB answer travels in the trailers")
		}
	}
}

// An engine's refusal is labelled by what it tells, and with no more.
func TestEngineRefusalsAreLabelledTruthfully(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		reason apierror.Reason
		code   codes.Code
	}{
		{400, `{"error":{"message":"no"}}`, apierror.InvalidBody, codes.InvalidArgument},
		{422, ``, apierror.InvalidBody, codes.InvalidArgument},
		{401, `{"error":"Unauthorized"}`, apierror.UpstreamRefused, codes.Unauthenticated},
		{403, ``, apierror.UpstreamRefused, codes.PermissionDenied},
		{404, `{"error":{"message":"The model ` + "`x`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`, apierror.ModelNotFound, codes.NotFound},
		{404, `{"object":"error","message":"The model ` + "`x`" + ` does not exist.","type":"NotFoundError","param":null,"code":404}`, apierror.ModelNotFound, codes.NotFound},
		{404, `{"error":{"message":"gone","code":"model_not_found"}}`, apierror.ModelNotFound, codes.NotFound},
		{404, `{"error":{"message":"Response with id 'resp_1' not found.","param":"response_id","code":404}}`, apierror.UpstreamRefused, codes.NotFound},
		{404, `{"detail":"Not Found"}`, apierror.UpstreamRefused, codes.NotFound},
		{404, `<html>`, apierror.UpstreamRefused, codes.NotFound},
		{404, `[1]`, apierror.UpstreamRefused, codes.NotFound},
		{405, `{"detail":"Method Not Allowed"}`, apierror.MethodNotAllowed, codes.Unimplemented},
		{408, ``, apierror.UpstreamRefused, codes.DeadlineExceeded},
		{409, ``, apierror.UpstreamRefused, codes.Aborted},
		{413, ``, apierror.BodyTooLarge, codes.ResourceExhausted},
		{415, ``, apierror.UnsupportedMediaType, codes.InvalidArgument},
		{418, ``, apierror.UpstreamRefused, codes.FailedPrecondition},
		{429, ``, apierror.Overloaded, codes.ResourceExhausted},
		{500, ``, apierror.UpstreamError, codes.Unavailable},
		{501, ``, apierror.NotSupported, codes.Unimplemented},
	} {
		e := apierror.Upstream(c.status, "application/json", []byte(c.body))
		if e.Reason != c.reason || status.Convert(e).Code() != c.code || e.HTTPStatus() != c.status {
			t.Errorf("%d %s: %s, %s, %d; want %s, %s", c.status, c.body, e.Reason, status.Convert(e).Code(), e.HTTPStatus(), c.reason, c.code)
		}
		if back := apierror.From(status.Convert(e).Err()); back.Reason != c.reason || back.HTTPStatus() != c.status {
			t.Errorf("%d %s after a gRPC hop: %s, %d", c.status, c.body, back.Reason, back.HTTPStatus())
		}
	}
}

func TestBodies(t *testing.T) {
	e := apierror.New(apierror.ModelNotFound, `no "x"`, nil, apierror.WithParam("model"))
	for name, tc := range map[string]struct{ got, want string }{
		"openai":           {string(e.JSON(apierror.OpenAI)), `{"error":{"message":"no \"x\"","type":"not_found_error","param":"model","code":"model_not_found"}}`},
		"anthropic":        {string(e.JSON(apierror.Anthropic)), `{"type":"error","error":{"type":"not_found_error","message":"no \"x\""}}`},
		"openai events":    {string(e.Events(apierror.OpenAI)), `data: {"error":{"message":"no \"x\"","type":"not_found_error","param":"model","code":"model_not_found"}}` + "\n\ndata: [DONE]\n\n"},
		"responses":        {string(e.JSON(apierror.OpenAIResponses)), string(e.JSON(apierror.OpenAI))},
		"responses events": {string(e.Events(apierror.OpenAIResponses)), "event: error\n" + `data: {"type":"error","code":"model_not_found","message":"no \"x\"","param":"model","error":{"message":"no \"x\"","type":"not_found_error","param":"model","code":"model_not_found"}}` + "\n\n"},
		"anthropic events": {string(e.Events(apierror.Anthropic)), `event: error` + "\n" + `data: {"type":"error","error":{"type":"not_found_error","message":"no \"x\""}}` + "\n\n"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, tc.got, tc.want)
		}
	}
}

func TestEngineMessage(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":"Unauthorized"}`:                         "Unauthorized",
		`{"object":"error","message":"too long","code":1}`: "too long",
		`{"error":{"message":"bad"}}`:                      "bad",
		`not json`:                                         "the replica refused the request",
		`{"error":7}`:                                      "the replica refused the request",
		``:                                                 "the replica refused the request",
	} {
		if got := apierror.Upstream(400, "application/json", []byte(body)).Message; got != want {
			t.Errorf("%s: message %q, want %q", body, got, want)
		}
	}
}

func FuzzBodiesAreJSON(f *testing.F) {
	f.Add("x", "y", []byte(`{"error":{}}`))
	f.Add("\xff\n\n", "data: ", []byte("\x00"))
	f.Fuzz(func(t *testing.T, message, param string, answer []byte) {
		e := apierror.New(apierror.InvalidBody, message, nil, apierror.WithParam(param))
		for _, body := range [][]byte{e.JSON(apierror.OpenAI), e.JSON(apierror.Anthropic)} {
			if !json.Valid(body) || bytes.ContainsAny(body, "\r\n") {
				t.Errorf("not one line of JSON: %q", body)
			}
		}
		e = apierror.Upstream(400, "", answer)
		if st := status.Convert(e); st.Code() != codes.InvalidArgument {
			t.Errorf("status = %v", st)
		}
	})
}

// Every field that breaks a rule is named, in the message and as a google.rpc.BadRequest, and read back from the wire.
func TestViolations(t *testing.T) {
	var list []apierror.Violation
	for i := range 20 {
		list = append(list, apierror.Violation{Field: fmt.Sprintf("f%d", i), Description: "must be at least 1"})
	}
	list[1].Field = ""
	e := apierror.Violated(list[:2], nil)
	if want := "f0: must be at least 1; must be at least 1"; e.Message != want || e.Param != "f0" || e.Reason != apierror.InvalidBody {
		t.Errorf("%+v, want %q", e, want)
	}
	bad := func(e *apierror.Error) (out *errdetails.BadRequest) {
		for _, d := range status.Convert(e).Details() {
			if d, ok := d.(*errdetails.BadRequest); ok {
				out = d
			}
		}
		return out
	}
	if got := bad(e).GetFieldViolations(); len(got) != 2 || got[0].GetField() != "f0" || got[1].GetDescription() != "must be at least 1" {
		t.Errorf("BadRequest = %v", got)
	}
	if back := apierror.From(status.Convert(e).Err()); len(back.Violations) != 2 || back.Violations[0] != list[0] {
		t.Errorf("read back: %+v", back)
	}
	if e := apierror.Violated(list, nil); len(bad(e).GetFieldViolations()) != 16 || !strings.HasSuffix(e.Message, "; and 4 more") {
		t.Errorf("%d violations: %s", len(bad(e).GetFieldViolations()), e.Message)
	}
	if got := bad(apierror.New(apierror.InvalidBody, "is wrong", nil, apierror.WithParam("model"))).GetFieldViolations(); len(got) != 1 || got[0].GetField() != "model" {
		t.Errorf("BadRequest of a fault in one field = %v", got)
	}
	if got := bad(apierror.New(apierror.ModelNotFound, "none", nil, apierror.WithParam("model"))); got != nil {
		t.Errorf("BadRequest of another fault = %v", got)
	}
}
