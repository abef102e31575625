package openai

import (
	"bytes"
	"fmt"
	"net/http"
)

// BadRequest says why a body was refused. Its text is safe to show to the client.
type BadRequest struct {
	// Message is for people: the fault and its place.
	Message string
	// Param is the field at fault ("messages[2].content"), empty when it is the body as a whole.
	Param string
	// Code is the machine-readable reason: CodeInvalidJSON, CodeInvalidValue, CodeTooLarge.
	Code string
	// Status is the HTTP status: 400, 413 or 415.
	Status int
	// Offset is the byte of the body at fault, -1 when no single byte is.
	Offset int
}

// The codes of BadRequest.
const (
	CodeInvalidJSON  = "invalid_json"
	CodeInvalidValue = "invalid_value"
	CodeTooLarge     = "request_too_large"
	CodeMediaType    = "unsupported_media_type"
)

// Error implements error.
func (e *BadRequest) Error() string { return e.Message }

// syntaxAt makes the error for body bytes that are no JSON.
func syntaxAt(body []byte, offset int, field, what string) *BadRequest {
	offset = min(offset, len(body))
	line := 1 + bytes.Count(body[:offset], []byte{'\n'})
	column := offset - bytes.LastIndexByte(body[:offset], '\n')
	where := ""
	if field != "" {
		where = fmt.Sprintf(" in field %q", field)
	}
	return &BadRequest{
		Message: fmt.Sprintf("The request body is not valid JSON: %s%s at line %d column %d (byte %d).", what, where, line, column, offset),
		Param:   field,
		Code:    CodeInvalidJSON,
		Status:  http.StatusBadRequest,
		Offset:  offset,
	}
}

// foreignEncoding makes the error for a body in another encoding than UTF-8.
func foreignEncoding(name string) *BadRequest {
	return &BadRequest{
		Message: "The request body is " + name + ", and JSON must be UTF-8.", Code: CodeInvalidJSON, Status: http.StatusBadRequest, Offset: 0,
	}
}

func invalidValue(field, message string, offset int) *BadRequest {
	return &BadRequest{Message: message, Param: field, Code: CodeInvalidValue, Status: http.StatusBadRequest, Offset: offset}
}
