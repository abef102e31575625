package openai

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Rendered is an engine's own request for a chat, as its render route returns it: the prompt's ids and the sampling parameters with all
// that the server's settings, its tool parser and its reasoning parser add. Its slices share memory with the answer.
type Rendered struct {
	// IDs are the prompt's.
	IDs []uint32

	limit, least   int
	params         []byte // members of the sampling parameters that are asked for again, each behind a comma
	salt, priority []byte
	options        []byte
}

// errNotRendered is an answer of a render route that is no request.
var errNotRendered = errors.New("the engine's render route did not return a request")

// ReadRendered reads the answer of a render route. The error says what keeps an engine from continuing the request by token ids.
func ReadRendered(body []byte) (*Rendered, error) {
	r := &Rendered{limit: -1}
	var bad error
	s := rawjson.Scanner{Data: body}
	if s.Space() != '{' {
		return nil, errNotRendered
	}
	var ids, params []byte
	ok := s.Members(func(name []byte, _ int) bool {
		from := s.Pos
		if !s.Skip() {
			return false
		}
		value := body[from:s.Pos]
		switch string(name) {
		case "token_ids":
			ids = value
		case "sampling_params":
			params = value
		case "cache_salt":
			r.salt = value
		case "priority":
			r.priority = value
		case "stream_options":
			r.options = value
		case "request_id", "model", "stream", "parse_context", "reasoning_ended", "reasoning_parser_kwargs", "return_token_ids", "output_mode",
			"token_offsets", "assistant_tokens_mask":
		default:
			if !idle(value) {
				bad = fmt.Errorf("the request has %s", name)
			}
		}
		return true
	})
	if !ok || !EachID(ids, func(id uint32) bool { r.IDs = append(r.IDs, id); return true }) || len(r.IDs) == 0 {
		return nil, errNotRendered
	}
	if bad != nil {
		return nil, bad
	}
	return r, r.sampling(params)
}

// sampling takes the sampling parameters. Unknown ones must have a value that asks for nothing.
func (r *Rendered) sampling(params []byte) error {
	s := rawjson.Scanner{Data: params}
	if len(params) == 0 || s.Space() != '{' {
		return errNotRendered
	}
	var bad error
	ok := s.Members(func(name []byte, _ int) bool {
		from := s.Pos
		if !s.Skip() {
			return false
		}
		value := params[from:s.Pos]
		switch string(name) {
		case "max_tokens":
			r.limit = count(value)
		case "min_tokens":
			r.least = max(0, count(value))
		case "seed": // see Continuation.Seed
		case "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids", "stop_token_ids", "ignore_eos",
			"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "stream_interval",
			"output_kind", "skip_clone", "skip_reading_prefix_cache", "detokenize":
			r.params = append(rawjson.AppendString(append(r.params, ','), string(name)), ':')
			r.params = append(r.params, value...)
		case "n":
			if string(value) != "1" {
				bad = errors.New("the request has several choices")
			}
		default:
			if !idle(value) {
				bad = fmt.Errorf("the sampling parameter %s depends on the tokens of the answer, or is not known", name)
			}
		}
		return true
	})
	if !ok {
		return errNotRendered
	}
	return bad
}

// idle reports whether a value asks for nothing.
func idle(value []byte) bool {
	switch string(value) {
	case "null", "false", "[]", "{}", `""`, "0", "0.0":
		return true
	}
	return false
}

// rest returns the body for a route that takes and returns token ids, which continues the answer, within the limit of rest. It is false
// when no token is left.
func (r *Rendered) rest(rest *Rest, seed int64, seeded bool) ([]byte, bool) {
	limit := rest.Limit
	if r.limit >= 0 {
		limit = min(limit, r.limit-rest.Answer)
	}
	if limit < 1 {
		return nil, false
	}
	body := make([]byte, 0, 7*len(rest.IDs)+len(r.params)+256)
	body = append(rawjson.AppendString(append(body, `{"model":`...), rest.Model), `,"stream":true,"token_ids":`...)
	body = rawjson.AppendUint32s(body, rest.IDs)
	for _, m := range []struct {
		name  string
		value []byte
	}{{"stream_options", r.options}, {"cache_salt", r.salt}, {"priority", r.priority}} {
		if len(m.value) > 0 && string(m.value) != "null" {
			body = append(append(append(append(body, `,"`...), m.name...), `":`...), m.value...)
		}
	}
	body = strconv.AppendInt(append(body, `,"sampling_params":{"max_tokens":`...), int64(limit), 10)
	if least := r.least - rest.Answer; least > 0 {
		body = strconv.AppendInt(append(body, `,"min_tokens":`...), int64(least), 10)
	}
	if seeded {
		body = strconv.AppendInt(append(body, `,"seed":`...), seed, 10)
	}
	return append(append(body, r.params...), "}}"...), true
}

// ByIDs is the body that asks a route which takes and returns token ids for the rest of the answer; nil when no token is left. An engine has rendered
// the request.
func (c Continuation) ByIDs(as *Rendered, rest *Rest) []byte {
	seed, seeded := c.Seed(rest.Answer)
	body, _ := as.rest(rest, seed, seeded)
	return body
}
