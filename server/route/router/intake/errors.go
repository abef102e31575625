package intake

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// IsEnd reports whether a body or an answer has come whole: a wrapped io.EOF is one that was cut off.
func IsEnd(err error) bool { return err == io.EOF }

// BadRequest is the public form of an error of openai.Read.
func BadRequest(err error) *apierror.Error {
	var bad *openai.BadRequest
	if !errors.As(err, &bad) {
		return apierror.From(err)
	}
	reason := apierror.InvalidBody
	switch bad.Code {
	case openai.CodeTooLarge:
		reason = apierror.BodyTooLarge
	case openai.CodeMediaType:
		reason = apierror.UnsupportedMediaType
	}
	return apierror.New(reason, bad.Message, nil, apierror.WithParam(bad.Param))
}

// Cause prefers the reason why the context ended.
func Cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// Clip shortens text that a caller sent before it is shown again.
func Clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return text[:limit] + "…"
}

// MustJSON marshals values of our own that always can be.
func MustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("router: " + err.Error())
	}
	return text
}
