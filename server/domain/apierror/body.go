package apierror

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// Dialect is the shape of an error body.
type Dialect uint8

// The dialects.
const (
	// OpenAI: {"error":{"message","type","param","code"}}.
	OpenAI Dialect = iota
	// Anthropic: {"type":"error","error":{"type","message"}}.
	Anthropic
	// OpenAIResponses is OpenAI but for its streams: every event of those has a name and a type, and
	// there is no [DONE].
	OpenAIResponses
)

type openAIBody struct {
	Error openAIError `json:"error"`
}

type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// responsesEvent is the error event of a stream of the Responses API. The fields besides type are its
// documented form; the SDKs look for error, as in every other stream, and raise it.
type responsesEvent struct {
	Type    string      `json:"type"`
	Code    string      `json:"code"`
	Message string      `json:"message"`
	Param   *string     `json:"param"`
	Error   openAIError `json:"error"`
}

type anthropicBody struct {
	Type  string         `json:"type"`
	Error anthropicError `json:"error"`
}

type anthropicError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// Body renders the error for REST callers: an engine's own answer as it is, everything else in
// the dialect given.
func (e *Error) Body(d Dialect) (contentType string, body []byte) {
	if e.Answer != nil {
		if e.Answer.ContentType == "" {
			return "application/json", e.Answer.Body
		}
		return e.Answer.ContentType, e.Answer.Body
	}
	return "application/json", e.JSON(d)
}

// JSON renders the error in the dialect given, on one line, whether or not an engine had words
// of its own: a stream that has begun can still carry it.
func (e *Error) JSON(d Dialect) []byte {
	switch d {
	case Anthropic:
		return marshal(anthropicBody{Type: "error", Error: anthropicError{Type: anthropicType(e.Reason), Message: e.Message}})
	case OpenAI, OpenAIResponses:
	}
	return marshal(openAIBody{Error: e.openAI()})
}

func (e *Error) openAI() openAIError {
	_, _, kind := e.codes()
	body := openAIError{Message: e.Message, Type: kind, Code: code(e.Reason)}
	if e.Param != "" {
		body.Param = &e.Param
	}
	return body
}

func marshal(value any) []byte {
	out, err := json.Marshal(value)
	if err != nil { // strings always marshal; kept so that no caller ever gets an empty body
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`)
	}
	return out
}

// Events renders the error as the last events of a server-sent-event stream that has begun.
func (e *Error) Events(d Dialect) []byte {
	switch d {
	case Anthropic:
		return event("event: error\ndata: ", e.JSON(d), "\n\n")
	case OpenAIResponses:
		body := e.openAI()
		return event("event: error\ndata: ", marshal(responsesEvent{Type: "error", Code: body.Code, Message: body.Message, Param: body.Param, Error: body}), "\n\n")
	case OpenAI:
	}
	return event("data: ", e.JSON(d), "\n\ndata: [DONE]\n\n")
}

func event(before string, body []byte, after string) []byte {
	return append(append([]byte(before), body...), after...)
}

// RetryAfterHeader is the value of a Retry-After header in whole seconds, rounded up; empty for none.
func (e *Error) RetryAfterHeader() string {
	if e.RetryAfter <= 0 {
		return ""
	}
	seconds := math.Ceil(float64(e.RetryAfter) / float64(time.Second))
	return strconv.FormatInt(int64(seconds), 10)
}

// RetryAfterMS is the same in milliseconds, as the SDKs of OpenAI and others read it; empty for none.
func (e *Error) RetryAfterMS() string {
	if e.RetryAfter <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(math.Ceil(float64(e.RetryAfter)/float64(time.Millisecond))), 10)
}

// anthropicType is the error type in Anthropic's vocabulary.
func anthropicType(r Reason) string {
	_, status, kind := codesOf(r)
	switch {
	case status == 413:
		return "request_too_large"
	case status == 503 || r == Overloaded:
		return "overloaded_error"
	case kind == typeServer:
		return "api_error"
	}
	return kind
}

// longestFault bounds an engine's error body that is looked into.
const longestFault = 64 << 10

// engineMessage is the sentence in an engine's error body, in any of the shapes that vLLM has
// used; a general sentence when there is none or it is too long to repeat.
func engineMessage(body []byte) string {
	const general, longest = "the replica refused the request", 2 << 10
	var shape struct {
		Message string          `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	if len(body) > longestFault || json.Unmarshal(body, &shape) != nil {
		return general
	}
	var nested struct {
		Message string `json:"message"`
	}
	var text string
	switch {
	case shape.Message != "":
		text = shape.Message
	case json.Unmarshal(shape.Error, &text) == nil:
	case json.Unmarshal(shape.Error, &nested) == nil:
		text = nested.Message
	}
	if text == "" || len(text) > longest || !utf8.ValidString(text) {
		return general
	}
	return text
}
