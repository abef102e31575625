package openai

import (
	"bytes"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// WholeForm is the JSON in which an engine gives an answer in one piece, with places for its values. It was read from one of its
// answers, so everything else is the engine's own bytes. It is immutable.
type WholeForm struct {
	parts []wholePart
	// counts are the numbers in the usage's details of the prompt; nil when the engine gives none.
	counts map[string]bool
}

// wholePart is some bytes of the form, followed by a value; the last one is followed by none.
type wholePart struct {
	before []byte
	value  wholeValue
	// count is the name of a number in the details of the prompt.
	count string
}

type wholeValue uint8

const (
	noValue wholeValue = iota
	valueID
	valueCreated
	valueModel
	valueText
	valueFinish
	valueStop
	valuePrompt
	valueTotal
	valueAnswer
	valueCount
	valueChoices
)

// Whole has the values of an answer in one piece. The slices are raw JSON, but for Text.
type Whole struct {
	ID, Created, Model []byte
	Text               []byte
	Finish, Stop       []byte
	// Usage is the stream's.
	Usage []byte
	// Choices is the raw list of the choices, of an answer that a parser takes apart.
	Choices []byte
}

// Take adds an event of a stream. It returns false for one that is not part of one plain text, or has a member without a place.
func (w *Whole) Take(c *Chunk) bool {
	switch {
	case c.Fault > 0 || c.Choices > 1:
		return false
	case c.Choices == 0:
		if c.Usage != nil {
			w.Usage = bytes.Clone(c.Usage)
		}
		return absent(c.data, "metrics")
	case c.Index != 0 || !c.Plain || c.Empty || c.Logprobs != nil:
		return false
	}
	return w.add(c)
}

// add adds the head, the text and the end of an event.
func (w *Whole) add(c *Chunk) bool {
	if w.ID == nil {
		w.ID, w.Created, w.Model = bytes.Clone(memberOf(c.Head, "id")), bytes.Clone(memberOf(c.Head, "created")), bytes.Clone(memberOf(c.Head, "model"))
	}
	w.Text = AppendText(w.Text, c.Text)
	if c.Finish != nil {
		w.Finish, w.Stop = bytes.Clone(c.Finish), bytes.Clone(c.Stop)
		return absent(c.data, "kv_transfer_params")
	}
	return true
}

// TakeParsed is Take for an event of an answer that a parser takes apart.
func (w *Whole) TakeParsed(c *Chunk) bool {
	if c.Choices == 1 && c.Index == 0 && c.Logprobs == nil && c.Fault == 0 {
		return w.add(c)
	}
	return c.Choices == 0 && w.Take(c)
}

// absent reports whether a member of an object is missing or null.
func absent(object []byte, name string) bool {
	value := memberOf(object, name)
	return value == nil || string(value) == "null"
}

// ReadWholeForm reads the form from an answer of one choice that is a text and nothing else: without log probabilities, reasoning and tool calls, by
// an engine without a parser for reasoning. It returns nil for any other answer.
func ReadWholeForm(api prompt.API, answer []byte) *WholeForm {
	r := wholeReader{s: rawjson.Scanner{Data: answer}, form: &WholeForm{}, seen: map[wholeValue]int{}}
	known := r.s.Space() == '{' && r.s.Members(func(name []byte, _ int) bool {
		if string(name) == "choices" {
			return r.s.Space() == '[' && r.s.Elements(func(i int) bool { return i == 0 && r.choice(api) })
		}
		return r.common(name)
	})
	for v := valueID; v <= valueAnswer; v++ {
		known = known && r.seen[v] == 1
	}
	if !known || len(bytes.TrimSpace(answer[r.s.Pos:])) > 0 {
		return nil
	}
	r.form.parts = append(r.form.parts, wholePart{before: bytes.Clone(answer[r.at:])})
	return r.form
}

// ReadParsedForm reads the form from an answer of any one choice, by an engine without a parser for reasoning, which would count
// tokens of reasoning in its usage. It returns nil for any other answer.
func ReadParsedForm(answer []byte) *WholeForm {
	r := wholeReader{s: rawjson.Scanner{Data: answer}, form: &WholeForm{}, seen: map[wholeValue]int{}}
	choices := 0
	known := r.s.Space() == '{' && r.s.Members(func(name []byte, _ int) bool {
		if string(name) == "choices" {
			ahead := rawjson.Scanner{Data: answer, Pos: r.s.Pos}
			return r.s.Space() == '[' && ahead.Space() == '[' && ahead.Elements(func(int) bool { choices++; return ahead.Skip() }) && r.put(valueChoices, 0)
		}
		return r.common(name)
	})
	for _, v := range []wholeValue{valueID, valueCreated, valueModel, valueChoices, valuePrompt, valueTotal, valueAnswer} {
		known = known && r.seen[v] == 1
	}
	if !known || choices != 1 || len(bytes.TrimSpace(answer[r.s.Pos:])) > 0 {
		return nil
	}
	r.form.parts = append(r.form.parts, wholePart{before: bytes.Clone(answer[r.at:])})
	return r.form
}

// Parsed reports whether a parser makes the choices of the form's answers.
func (f *WholeForm) Parsed() bool {
	for i := range f.parts {
		if f.parts[i].value == valueChoices {
			return true
		}
	}
	return false
}

// common reads a member that answers of both forms have.
func (r *wholeReader) common(name []byte) bool {
	switch string(name) {
	case "id":
		return r.put(valueID, '"')
	case "created":
		return r.put(valueCreated, '0')
	case "model":
		return r.put(valueModel, '"')
	case "usage":
		return r.usage()
	case "object", "system_fingerprint":
		return r.fixed()
	}
	return r.idle()
}

// wholeReader reads a form. at is the end of the last place.
type wholeReader struct {
	s    rawjson.Scanner
	form *WholeForm
	at   int
	seen map[wholeValue]int
}

// put makes a place of the value at hand, which must be a string, a number ('0') or, with 0, may be anything.
func (r *wholeReader) put(v wholeValue, kind byte) bool {
	c := r.s.Space()
	from := r.s.Pos
	if kind == '"' && c != '"' || kind == '0' && (c < '0' || c > '9') || !r.s.Skip() {
		return false
	}
	r.form.parts = append(r.form.parts, wholePart{before: bytes.Clone(r.s.Data[r.at:from]), value: v})
	r.at = r.s.Pos
	r.seen[v]++
	return true
}

// fixed keeps a string, or null.
func (r *wholeReader) fixed() bool {
	c := r.s.Space()
	return (c == '"' || c == 'n') && r.s.Skip()
}

// idle keeps a value that says nothing.
func (r *wholeReader) idle() bool {
	r.s.Space()
	from := r.s.Pos
	return r.s.Skip() && (string(r.s.Data[from:r.s.Pos]) == "null" || string(r.s.Data[from:r.s.Pos]) == "[]")
}

func (r *wholeReader) choice(api prompt.API) bool {
	return r.s.Space() == '{' && r.s.Members(func(name []byte, _ int) bool {
		switch {
		case string(name) == "index":
			r.s.Space()
			from := r.s.Pos
			return r.s.Skip() && string(r.s.Data[from:r.s.Pos]) == "0"
		case string(name) == "text" && api == prompt.APICompletions:
			return r.put(valueText, '"')
		case string(name) == "message" && api == prompt.APIChat:
			return r.message()
		case string(name) == "finish_reason":
			return r.put(valueFinish, '"')
		case string(name) == "stop_reason":
			return r.put(valueStop, 0)
		}
		return r.idle()
	})
}

func (r *wholeReader) message() bool {
	return r.s.Space() == '{' && r.s.Members(func(name []byte, _ int) bool {
		switch string(name) {
		case "role":
			r.s.Space()
			from := r.s.Pos
			return r.s.Skip() && string(r.s.Data[from:r.s.Pos]) == `"assistant"`
		case "content":
			return r.put(valueText, '"')
		}
		return r.idle()
	})
}

func (r *wholeReader) usage() bool {
	return r.s.Space() == '{' && r.s.Members(func(name []byte, _ int) bool {
		switch string(name) {
		case "prompt_tokens":
			return r.put(valuePrompt, '0')
		case "total_tokens":
			return r.put(valueTotal, '0')
		case "completion_tokens":
			return r.put(valueAnswer, '0')
		case "prompt_tokens_details":
			if r.s.Space() == '{' {
				return r.details()
			}
		}
		return r.idle()
	})
}

// details reads the details of the prompt: numbers, and members that are null.
func (r *wholeReader) details() bool {
	r.form.counts = map[string]bool{}
	return r.s.Members(func(name []byte, _ int) bool {
		if c := r.s.Space(); c < '0' || c > '9' {
			return r.idle()
		}
		ok := r.put(valueCount, '0')
		r.form.parts[len(r.form.parts)-1].count = string(name)
		r.form.counts[string(name)] = true
		return ok
	})
}

// Append appends the answer of these values. It returns false when the form has no place for a value, or the values lack one. Of a continued
// answer the usage may lack counts, which are then zero.
func (f *WholeForm) Append(dst []byte, w *Whole, continued bool) ([]byte, bool) {
	counts, ok := f.details(w.Usage, continued)
	question, answer := count(memberOf(w.Usage, "prompt_tokens")), count(memberOf(w.Usage, "completion_tokens"))
	if !ok || question < 0 || answer < 0 || w.ID == nil || w.Created == nil || w.Model == nil || w.Finish == nil {
		return dst, false
	}
	for i := range f.parts {
		p := &f.parts[i]
		dst = append(dst, p.before...)
		switch p.value {
		case noValue:
		case valueID:
			dst = append(dst, w.ID...)
		case valueCreated:
			dst = append(dst, w.Created...)
		case valueModel:
			dst = append(dst, w.Model...)
		case valueText:
			dst = appendAsPython(dst, w.Text)
		case valueFinish:
			dst = append(dst, w.Finish...)
		case valueStop:
			dst = orNull(dst, w.Stop)
		case valuePrompt:
			dst = strconv.AppendInt(dst, int64(question), 10)
		case valueTotal:
			dst = strconv.AppendInt(dst, int64(question+answer), 10)
		case valueAnswer:
			dst = strconv.AppendInt(dst, int64(answer), 10)
		case valueCount:
			dst = strconv.AppendInt(dst, int64(counts[p.count]), 10)
		case valueChoices:
			if w.Choices == nil {
				return dst, false
			}
			dst = append(dst, w.Choices...)
		}
	}
	return dst, true
}

// details reads the counts of the prompt that the form has places for. It returns false when the stream's usage has others.
func (f *WholeForm) details(usage []byte, continued bool) (map[string]int, bool) {
	if more := memberOf(usage, "completion_tokens_details"); more != nil && string(more) != "null" {
		return nil, false // of an engine with a parser for reasoning
	}
	details := memberOf(usage, "prompt_tokens_details")
	if len(details) == 0 || string(details) == "null" {
		return nil, f.counts == nil || continued
	}
	counts := map[string]int{}
	s := rawjson.Scanner{Data: details}
	ok := s.Space() == '{' && s.Members(func(name []byte, _ int) bool {
		from := s.Pos
		fine := s.Skip()
		raw := s.Data[from:s.Pos]
		if string(raw) == "null" {
			return fine
		}
		n := count(raw)
		counts[string(name)] = n
		return fine && n >= 0 && f.counts[string(name)]
	})
	return counts, ok && (continued || len(counts) == len(f.counts))
}

// appendAsPython appends a JSON string as Python's json module writes it without ensure_ascii.
func appendAsPython(dst, text []byte) []byte {
	dst = append(dst, '"')
	from := 0
	for i, c := range text {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		switch c {
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '"', '\\':
			dst = append(dst, '\\', c)
		default:
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, text[from:]...), '"')
}

// Streamed returns the request r, for a model, for the same answer as a stream with its usage; nil for one that is streamed already or cannot be read. The
// engine's answer in one piece can be made of the stream only where the request asks for nothing but one answer of the assistant, a text or calls of tools.
func Streamed(r *Request, model string) *Request {
	if r.Stream || r.Truncated || r.end == 0 || r.N != 1 || string(r.Raw("add_generation_prompt")) == "false" {
		return nil
	}
	for _, name := range []string{"stream_options", "logprobs", "continue_final_message", "return_prompt_text"} {
		if r.lastMember(name) >= 0 && !idle(r.Raw(name)) || name == "logprobs" && string(r.Raw(name)) == "0" {
			return nil
		}
	}
	streamed, err := Read(Params{Route: r.Route, Body: r.Edit(
		ModelEdit(model), Edit{Name: "stream", Value: []byte("true")}, Edit{Name: "stream_options", Value: []byte(`{"include_usage":true}`)},
	)})
	if err != nil {
		return nil
	}
	return streamed
}
