package enginesim

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// apiError is an answer that is not a success.
type apiError struct {
	Status  int
	Message string
	// Type is vLLM's name ("BadRequestError"); empty takes the status's.
	Type string
	// Param names the field at fault.
	Param string
	// Anthropic writes it as /v1/messages does.
	Anthropic bool
}

func badRequest(message, param string) apiError {
	return apiError{Status: http.StatusBadRequest, Message: message, Type: "BadRequestError", Param: param}
}

func errorType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusForbidden:
		return "PermissionDeniedError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusUnprocessableEntity:
		return "UnprocessableEntityError"
	case http.StatusNotImplemented:
		return "NotImplementedError"
	}
	if status >= 500 {
		return "InternalServerError"
	}
	return http.StatusText(status)
}

// validationError words a body that does not fit, as pydantic's messages do.
func validationError(err error) apiError {
	var semantic *json.SemanticError
	place, kind, text := "body", "json_invalid", "JSON decode error"
	if errors.As(err, &semantic) {
		place = "body" + strings.ReplaceAll(string(semantic.JSONPointer), "/", ".")
		kind, text = wanted(semantic)
	}
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		place = fmt.Sprintf("body.%d", syntax.ByteOffset)
	}
	e := badRequest(fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s'}", kind, place, text), place)
	e.Type = "Bad Request"
	return e
}

// wanted names the right type of the field.
func wanted(e *json.SemanticError) (kind, text string) {
	if e.GoType == nil {
		return "value_error", "Input is not valid"
	}
	switch e.GoType.Kind().String() {
	case "slice":
		return "list_type", "Input should be a valid list"
	case "string":
		return "string_type", "Input should be a valid string"
	case "bool":
		return "bool_parsing", "Input should be a valid boolean"
	case "int", "int64", "uint32":
		return "int_parsing", "Input should be a valid integer"
	case "float64":
		return "float_parsing", "Input should be a valid number"
	}
	return "dict_type", "Input should be a valid dictionary"
}

func missingField(name string) apiError {
	e := badRequest("1 validation error:\n  {'type': 'missing', 'loc': 'body."+name+"', 'msg': 'Field required'}", "body."+name)
	e.Type = "Bad Request"
	return e
}

type errorBody struct {
	Object  string  `json:"object,omitempty"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    any     `json:"code"`
}

// errorObject is the value of "error" in the dialect of version and front end.
func (d *dialect) errorObject(e apiError, stringCodes bool) errorBody {
	b := errorBody{Message: e.Message, Type: e.Type, Code: e.Status}
	if b.Type == "" {
		b.Type = errorType(e.Status)
	}
	if e.Param != "" && (d.features.has(errorParam) || d.cfg.Rust) {
		b.Param = &e.Param
	}
	if !d.cfg.Rust && !stringCodes {
		return b
	}
	b.Type = "invalid_request_error"
	switch {
	case e.Status >= 500:
		b.Type, b.Code = "server_error", "server_error"
	case e.Status == http.StatusNotFound && e.Param == "model":
		b.Code = "model_not_found"
	case strings.Contains(e.Message, "json_invalid"):
		b.Code = "json_parse_error"
	default:
		b.Code = "invalid_request_error"
	}
	return b
}

// fail answers an error.
func (d *dialect) fail(c *call, e apiError) {
	if e.Anthropic {
		c.reply(e.Status, anthropicError{Type: "error", Error: anthropicCause{Type: e.Type, Message: e.Message}})
		return
	}
	b := d.errorObject(e, c.faults.StringCodes)
	if !d.features.has(nestedErrors) && !d.cfg.Rust {
		b.Object = "error"
		c.reply(e.Status, b)
		return
	}
	c.reply(e.Status, map[string]errorBody{"error": b})
}

type anthropicError struct {
	Type  string         `json:"type"`
	Error anthropicCause `json:"error"`
}

type anthropicCause struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// spoiled has work write into memory and sends half of it, or something that is not JSON.
func spoiled(c *call, work func()) {
	real := c.w
	kept := &keeper{header: real.Header(), status: http.StatusOK}
	c.w = kept
	work()
	body := kept.body
	if c.faults.WrongJSON {
		body = append(append([]byte{}, body[:len(body)/2]...), "}}\x00 this is no JSON"...)
		real.WriteHeader(kept.status)
		_, _ = real.Write(body) // a client that left needs no answer
		return
	}
	real.Header().Set("Content-Length", fmt.Sprint(len(body)))
	real.WriteHeader(kept.status)
	_, _ = real.Write(body[:len(body)/2]) // as above
	_ = http.NewResponseController(real).Flush()
	panic(http.ErrAbortHandler)
}

// keeper is a ResponseWriter that keeps the answer.
type keeper struct {
	header http.Header
	status int
	body   []byte
}

func (k *keeper) Header() http.Header { return k.header }
func (k *keeper) WriteHeader(s int)   { k.status = s }
func (k *keeper) Write(b []byte) (int, error) {
	k.body = append(k.body, b...)
	return len(b), nil
}

// Flush is there so that streams can be kept.
func (k *keeper) Flush() {}
