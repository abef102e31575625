package apierror

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// domain is the ErrorInfo domain of every fault that kvpilot names.
const domain = "kvpilot"

// Error is a public fault.
type Error struct {
	// Reason names the fault.
	Reason Reason
	// Message is shown to callers: no addresses, no texts of other libraries.
	Message string
	// Param is the request field that is at fault, as OpenAI's "param"; empty for none.
	Param string
	// Violations are all fields that are at fault, Param the first one; nil where one alone was looked for.
	Violations []Violation
	// RetryAfter is how long a caller should wait before it tries again; zero says nothing.
	RetryAfter time.Duration
	// Header holds further headers for the answer; nil for none. gRPC callers find them in the ErrorInfo's metadata.
	Header http.Header
	// Answer is an engine's own answer that is passed on as it is; nil when the fault is ours.
	Answer *Answer

	cause       error
	unavailable bool
	upgrade     bool
}

// Violation is one field that breaks a rule.
type Violation struct {
	// Field is the path of the field; empty for a rule about the whole message.
	Field string
	// Description is the rule: "must be at least 1".
	Description string
}

// maxViolations bounds the fields that one error names.
const maxViolations = 16

// Violated makes an InvalidBody that names every field at fault.
func Violated(list []Violation, cause error) *Error {
	var text strings.Builder
	for i, v := range list {
		if i == maxViolations {
			text.WriteString("; and " + strconv.Itoa(len(list)-i) + " more")
			list = list[:i]
			break
		}
		if i > 0 {
			text.WriteString("; ")
		}
		if v.Field != "" {
			text.WriteString(v.Field + ": ")
		}
		text.WriteString(v.Description)
	}
	e := New(InvalidBody, text.String(), cause)
	if len(list) > 0 {
		WithParam(list[0].Field)(e)
	}
	e.Violations = list
	return e
}

// Answer is a replica's own answer about the client's request.
type Answer struct {
	Status      int
	ContentType string
	// Body is not copied and must not be changed.
	Body []byte
}

// Option sets a field that few faults have.
type Option func(*Error)

// WithParam names the request field at fault.
func WithParam(name string) Option {
	return func(e *Error) { e.Param = strings.ToValidUTF8(name, "�") }
}

// WithRetryAfter sets when callers may retry.
func WithRetryAfter(d time.Duration) Option { return func(e *Error) { e.RetryAfter = d } }

// WithHeader puts further headers into the answer.
func WithHeader(h http.Header) Option { return func(e *Error) { e.Header = h } }

// WithUnavailable makes an Overloaded the router's own: 503 and UNAVAILABLE instead of 429, which asks a
// caller to send less.
func WithUnavailable() Option { return func(e *Error) { e.unavailable = true } }

// WithUpgrade makes a NotSupported one of the protocol alone: 426, and the header Upgrade names the supported protocol.
func WithUpgrade() Option { return func(e *Error) { e.upgrade = true } }

// Upgrade names the protocol that the caller should have asked for; empty for none.
func (e *Error) Upgrade() string {
	if e.upgrade {
		return "websocket"
	}
	return ""
}

// codes returns the codes of the fault's reason.
func (e *Error) codes() (rpc codes.Code, httpStatus int, openAIType string) {
	switch {
	case e.unavailable:
		return codesOf(NoReplica)
	case e.upgrade:
		return codes.Unimplemented, http.StatusUpgradeRequired, typeInvalid
	}
	return codesOf(e.Reason)
}

// New makes a fault. The message is shown, the cause (which may be nil) is only logged.
func New(reason Reason, message string, cause error, options ...Option) *Error {
	e := &Error{Reason: reason, Message: strings.ToValidUTF8(message, "�"), cause: cause}
	for _, set := range options {
		set(e)
	}
	return e
}

// Upstream makes an Error of an engine's own refusal (a 4xx): every surface passes status,
// content type and body on byte for byte. Body is kept, not copied.
func Upstream(status int, contentType string, body []byte) *Error {
	return &Error{
		Reason:  upstreamReason(status, body),
		Message: engineMessage(body),
		Answer:  &Answer{Status: status, ContentType: contentType, Body: body},
	}
}

// OwnWords is the message as logs and traces may show it: an engine's own words, which the caller
// is given, can quote the prompt.
func (e *Error) OwnWords() string {
	if e.Answer != nil {
		return "the replica answered " + strconv.Itoa(e.Answer.Status)
	}
	return e.Message
}

// Error is for logs: the reason, the message and the cause.
func (e *Error) Error() string {
	text := Name(e.Reason) + ": " + e.OwnWords()
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error with the same reason.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Reason == e.Reason
}

// HTTPStatus is the status that a REST caller sees.
func (e *Error) HTTPStatus() int {
	if e.Answer != nil {
		return e.Answer.Status
	}
	_, status, _ := e.codes()
	return status
}

// Fault is the side at fault; it chooses the log level.
type Fault uint8

// The faults.
const (
	// FaultCaller: the request was wrong.
	FaultCaller Fault = iota
	// FaultGone: the caller cancelled or went away.
	FaultGone
	// FaultOurs: the router or a replica failed.
	FaultOurs
)

// Fault returns the side at fault.
func (e *Error) Fault() Fault {
	status := e.HTTPStatus()
	switch {
	case status == StatusClientClosed:
		return FaultGone
	case status < 500:
		return FaultCaller
	}
	return FaultOurs
}

// From gives the public form of any error. An *Error anywhere in the chain is returned as it is,
// a cancelled or expired context becomes Cancelled or DeadlineExceeded, everything else an
// Internal fault that hides err. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return New(Cancelled, "the request was cancelled", err)
	case errors.Is(err, context.DeadlineExceeded):
		return New(DeadlineExceeded, "the deadline passed", err)
	}
	if e := fromStatus(err); e != nil {
		return e
	}
	return New(Internal, "internal error", err)
}
