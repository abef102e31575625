package openai

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Parsed is the part of an answer that an engine's parser was given. Its state is nowhere in the stream, so another engine's parser is
// given the same tokens again, in the same portions.
type Parsed struct {
	// Prompt and Answer are token ids.
	Prompt, Answer []uint32
	// Portions are the portions of several ids, in order; all others have one.
	Portions []Portion
	// Calls are the ids of the tool calls so far, as raw JSON strings.
	Calls [][]byte
}

// Portion is some ids of an answer that came at once.
type Portion struct{ From, Count int }

// Derender is the body for a derender route: it has an engine parse the tokens of p without an answer, and then the tokens ids.
// Chat is the request that the engine would get for the whole answer.
func (p *Parsed) Derender(model string, chat []byte, ids []uint32, finish, stop []byte) []byte {
	b := make([]byte, 0, 7*(len(p.Prompt)+len(p.Answer)+len(ids))+2*len(p.Answer)+len(chat)+512)
	b = rawjson.AppendString(append(b, `{"stream":true,"model":`...), model)
	b = append(b, `,"generate_chunk":{"request_id":"kvpilot","choices":[{"index":0,"token_ids":`...)
	b = orNull(append(rawjson.AppendUint32s(b, ids), `,"finish_reason":`...), finish)
	b = orNull(append(b, `,"stop_reason":`...), stop)
	b = append(b, `}]},"stream_state":{"role_sent":true,"output_token_ids":`...)
	b = append(rawjson.AppendUint32s(b, p.Answer), `,"output_chunk_lens":`...)
	b = p.appendLengths(b)
	b = strconv.AppendBool(append(b, `,"tools_streamed":`...), len(p.Calls) > 0)
	b = append(append(append(b, `,"last_tool_call_ids":[`...), bytes.Join(p.Calls, []byte(","))...), `]},"prompt_token_ids":`...)
	b = append(rawjson.AppendUint32s(b, p.Prompt), `,"chat_request":`...)
	return append(append(b, chat...), '}')
}

// DerenderOne is the body for a chat derender route that asks for the text of one token, without the request. An engine with a parser rejects it.
func DerenderOne(model string) []byte {
	b := rawjson.AppendString([]byte(`{"model":`), model)
	return append(b, `,"generate_response":{"request_id":"kvpilot","choices":[{"index":0,"token_ids":[0],"finish_reason":"length"}]}}`...)
}

// DerenderWhole is the body for a chat derender route that makes the choices of an answer in one piece: of the request chat, with the ids of its prompt, a raw list, and of
// its answer. The finish reason is the stream's.
func DerenderWhole(model string, chat, prompt []byte, ids []uint32, finish, stop []byte) []byte {
	b := make([]byte, 0, len(chat)+2*len(prompt)+7*len(ids)+512)
	b = rawjson.AppendString(append(b, `{"model":`...), model)
	b = append(b, `,"generate_response":{"request_id":"kvpilot","choices":[{"index":0,"token_ids":`...)
	b = rawjson.AppendUint32s(b, ids)
	if string(finish) == `"tool_calls"` { // as chats have it; the engine has stopped
		finish = []byte(`"stop"`)
	}
	b = orNull(append(orNull(append(b, `,"finish_reason":`...), finish), `,"stop_reason":`...), stop)
	b = append(append(b, `}],"prompt_token_ids":`...), prompt...)
	b = append(append(b, `},"prompt_token_ids":`...), prompt...)
	return append(append(append(b, `,"chat_request":`...), chat...), '}')
}

// ReadDerenderedWhole reads the choices of an answer to DerenderWhole, as raw JSON, and the text of the only one. It returns nil where that has not the finish reason.
func ReadDerenderedWhole(answer, finish []byte) (choices []byte, text string) {
	choices = memberOf(answer, "choices")
	s := rawjson.Scanner{Data: choices}
	n, same := 0, false
	if len(choices) == 0 || s.Space() != '[' || !s.Elements(func(int) bool {
		n++
		from := s.Pos
		ok := s.Skip()
		one := choices[from:s.Pos]
		same = bytes.Equal(memberOf(one, "finish_reason"), finish)
		if content := memberOf(memberOf(one, "message"), "content"); len(content) > 0 && content[0] == '"' {
			text = string(AppendText(nil, content))
		}
		return ok
	}) || n != 1 || !same {
		return nil, ""
	}
	return choices, text
}

// appendLengths appends the lengths of all portions.
func (p *Parsed) appendLengths(b []byte) []byte {
	b = append(b, '[')
	at := 0
	length := func(n int) {
		if at > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
		at += n
	}
	for _, several := range p.Portions {
		for at < several.From {
			length(1)
		}
		length(several.Count)
	}
	for at < len(p.Answer) {
		length(1)
	}
	return append(b, ']')
}

// Until returns the parser's input before the answer's token at n, which begins a portion.
func (p *Parsed) Until(n int) *Parsed {
	q := *p
	q.Answer = p.Answer[:n]
	for len(q.Portions) > 0 && q.Portions[len(q.Portions)-1].From >= n {
		q.Portions = q.Portions[:len(q.Portions)-1]
	}
	return &q
}

// Derendered is an engine's parse of some tokens.
type Derendered struct {
	// Delta is the delta for the client, in the form of Tidy.
	Delta []byte
	// Finish is the finish reason of a chat, raw; nil for null.
	Finish []byte
}

// errNotDerendered is an answer of a derender route that is not known, or of an engine that has no parser and so did not take the tokens before.
var errNotDerendered = errors.New("the engine's derender route did not parse the answer")

// ReadDerendered reads the answer of a derender route that was given p and ids more.
func (p *Parsed) ReadDerendered(body []byte, ids int) (*Derendered, error) {
	state := memberOf(body, "stream_state")
	taken := 0
	if !EachID(memberOf(state, "output_token_ids"), func(uint32) bool { taken++; return true }) || taken != len(p.Answer)+ids {
		return nil, errNotDerendered
	}
	portions := 0
	if !EachID(memberOf(state, "output_chunk_lens"), func(n uint32) bool { portions += int(n); return true }) || portions != taken {
		return nil, errNotDerendered // an older version, which has no portions
	}
	d := &Derendered{Delta: []byte("{}")}
	var c Chunk
	chunk := memberOf(body, "chunk")
	if len(chunk) == 0 || !readChunk(chunk, &c) || c.Choices != 1 || c.Index != 0 {
		return nil, errNotDerendered
	}
	delta := deltaOf(chunk)
	if d.Delta = Tidy(nil, delta); d.Delta == nil {
		return nil, errNotDerendered
	}
	d.Finish = c.Finish
	return d, nil
}

// deltaOf returns the delta of a chunk's only choice.
func deltaOf(chunk []byte) []byte {
	choices := memberOf(chunk, "choices")
	s := rawjson.Scanner{Data: choices}
	var delta []byte
	if len(choices) > 0 && s.Space() == '[' {
		s.Elements(func(int) bool {
			from := s.Pos
			ok := s.Skip()
			delta = memberOf(choices[from:s.Pos], "delta")
			return ok
		})
	}
	return delta
}

// Tidy appends a delta as engines write it into streams, in one form for equal ones: without the role, members that are null, and empty lists.
// It returns nil for any other value.
func Tidy(dst, delta []byte) []byte {
	s := rawjson.Scanner{Data: delta}
	if len(delta) == 0 || s.Space() != '{' {
		return nil
	}
	dst, ok := tidyObject(dst, &s, true)
	if !ok {
		return nil
	}
	return dst
}

func tidyObject(dst []byte, s *rawjson.Scanner, top bool) ([]byte, bool) {
	dst = append(dst, '{')
	first := true
	ok := s.Members(func(name []byte, _ int) bool {
		if top && string(name) == "role" {
			return s.Skip()
		}
		before := len(dst)
		if !first {
			dst = append(dst, ',')
		}
		dst = append(rawjson.AppendString(dst, string(name)), ':')
		value := len(dst)
		var fine bool
		dst, fine = tidyValue(dst, s)
		if v := string(dst[value:]); v == "null" || v == "[]" {
			dst = dst[:before]
		} else {
			first = false
		}
		return fine
	})
	return append(dst, '}'), ok
}

func tidyValue(dst []byte, s *rawjson.Scanner) ([]byte, bool) {
	switch s.Space() {
	case '{':
		return tidyObject(dst, s, false)
	case '[':
		dst = append(dst, '[')
		ok := s.Elements(func(i int) bool {
			if i > 0 {
				dst = append(dst, ',')
			}
			var fine bool
			dst, fine = tidyValue(dst, s)
			return fine
		})
		return append(dst, ']'), ok
	case '"':
		from := s.Pos
		ok := s.Skip()
		if !ok {
			return dst, false
		}
		return rawjson.AppendString(dst, string(AppendText(nil, s.Data[from:s.Pos]))), true
	}
	from := s.Pos
	ok := s.Skip()
	return append(dst, s.Data[from:s.Pos]...), ok
}

// EachCall calls visit with the index and the raw id of each tool call in a delta that has an id.
func EachCall(delta []byte, visit func(index int, id []byte)) {
	calls := memberOf(delta, "tool_calls")
	s := rawjson.Scanner{Data: calls}
	if len(calls) == 0 || s.Space() != '[' {
		return
	}
	s.Elements(func(int) bool {
		from := s.Pos
		if !s.Skip() {
			return false
		}
		call := calls[from:s.Pos]
		if id := memberOf(call, "id"); len(id) > 2 && id[0] == '"' {
			visit(count(memberOf(call, "index")), id)
		}
		return true
	})
}
