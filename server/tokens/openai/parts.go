package openai

import (
	"strconv"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Place is where a part of an answer is: the choice, the member, and of a tool call its number.
type Place struct {
	Choice int
	Member Member
	Call   int
}

// Member is a member of a choice that grows while the answer is written.
type Member byte

// The members. The members of tool calls are CallName and CallArguments; Probabilities counts tokens.
const (
	Content Member = iota
	Reasoning
	ReasoningContent
	Refusal
	CompletionText
	CallName
	CallArguments
	Probabilities
)

// memberNames are the names in JSON.
var memberNames = [...]string{Content: "content", Reasoning: "reasoning", ReasoningContent: "reasoning_content", Refusal: "refusal", CompletionText: "text"}

// Part is an event's addition to a place: a raw JSON string, or of Probabilities the raw list of tokens.
type Part struct {
	Place
	Text []byte
	// ID is the raw id of a tool call, of CallName only; nil when the event has none.
	ID []byte
}

// End is the end of a choice: raw JSON, Stop nil for null.
type End struct {
	Choice       int
	Finish, Stop []byte
}

// Parts is the addition of one event of a chat or completion stream to an answer. Its slices share memory with the event.
type Parts struct {
	// Head is the object up to its choices.
	Head []byte
	List []Part
	// Ends are the choices that end here; Odd is set for a choice with a member that is not known.
	Ends []End
	Odd  bool
	// Choices counts the choices, Last is the last one. Fault is the code of an error object, 0 when there is none.
	Choices, Last, Fault int
	// Tail is the object from the finish reason on, of an event of one choice whose parts are all before it; nil for any other.
	Tail []byte

	chunk Chunk
	s     rawjson.Scanner
	at    Place
	end   End
	begun int // the choice's first part
	// tail is where the finish reason begins, body where the last part ends.
	tail, body int
}

// Read reads the JSON of one event; false for any other text.
func (p *Parts) Read(data []byte) bool {
	p.Head, p.List, p.Ends, p.Odd, p.Choices, p.Last, p.Fault = nil, p.List[:0], p.Ends[:0], false, 0, 0, 0
	p.Tail, p.tail, p.body = nil, 0, 0
	p.s = rawjson.Scanner{Data: data}
	if p.s.Space() != '{' || p.s.Pos != 0 {
		return false
	}
	ok := p.s.Members(p.member)
	if p.Choices == 1 && p.tail > p.body {
		p.Tail = data[p.tail:]
	}
	return ok
}

func (p *Parts) member(name []byte, start int) bool {
	switch string(name) {
	case "choices":
		p.Head = p.s.Data[:start]
		if p.s.Space() != '[' {
			p.Odd = true
			return p.s.Skip()
		}
		return p.s.Elements(p.choice)
	case "error":
		r := chunkReader{s: p.s, c: &p.chunk}
		p.chunk.Fault = 0
		ok := r.fault()
		p.s, p.Fault = r.s, p.chunk.Fault
		return ok
	}
	return p.s.Skip()
}

func (p *Parts) choice(int) bool {
	p.Choices++
	p.at, p.end, p.begun = Place{}, End{}, len(p.List)
	if p.s.Space() != '{' {
		p.Odd = true
		return p.s.Skip()
	}
	ok := p.s.Members(p.ofChoice)
	p.Last = p.at.Choice
	if p.end.Finish != nil {
		p.end.Choice = p.at.Choice
		p.Ends = append(p.Ends, p.end)
	}
	return ok
}

// into reads one value into dst.
func (p *Parts) into(dst *[]byte) (ok bool) {
	*dst, ok = p.raw()
	return ok
}

// raw reads one value, nil for null.
func (p *Parts) raw() ([]byte, bool) {
	from := p.s.Pos
	if !p.s.Skip() {
		return nil, false
	}
	if v := p.s.Data[from:p.s.Pos]; string(v) != "null" {
		return v, true
	}
	return nil, true
}

func (p *Parts) ofChoice(name []byte, start int) bool {
	switch string(name) {
	case "finish_reason":
		p.tail = start
	case "index", "delta", "text", "logprobs":
		defer func() { p.body = p.s.Pos }()
	}
	switch string(name) {
	case "index":
		v, ok := p.raw()
		p.at.Choice = wholeNumber(string(v))
		for i := range p.List[p.begun:] {
			p.List[p.begun+i].Choice = p.at.Choice
		}
		return ok
	case "delta":
		if p.s.Space() != '{' {
			p.Odd = true
			return p.s.Skip()
		}
		return p.s.Members(p.ofDelta)
	case "text":
		return p.add(CompletionText)
	case "finish_reason":
		return p.into(&p.end.Finish)
	case "stop_reason":
		return p.into(&p.end.Stop)
	case "logprobs":
		v, ok := p.raw()
		list := memberOf(v, "content")
		if v != nil && list == nil {
			p.Odd = p.Odd || !idle(v) // the members of a completion
		} else if list != nil && string(list) != "null" {
			p.List = append(p.List, Part{Place: Place{Choice: p.at.Choice, Member: Probabilities}, Text: list})
		}
		return ok
	case "token_ids", "prompt_token_ids", "weight_versions":
		return p.s.Skip()
	}
	return p.other()
}

// other reads a member that may have no value but one that asks for nothing.
func (p *Parts) other() bool {
	v, ok := p.raw()
	p.Odd = p.Odd || v != nil && !idle(v)
	return ok
}

func (p *Parts) ofDelta(name []byte, _ int) bool {
	switch string(name) {
	case "content":
		return p.add(Content)
	case "reasoning":
		return p.add(Reasoning)
	case "reasoning_content":
		return p.add(ReasoningContent)
	case "refusal":
		return p.add(Refusal)
	case "role":
		return p.s.Skip()
	case "tool_calls":
		if p.s.Space() != '[' {
			return p.other()
		}
		return p.s.Elements(p.call)
	}
	return p.other()
}

// add reads a string that a member grows by.
func (p *Parts) add(m Member) bool {
	v, ok := p.raw()
	switch {
	case v == nil:
	case v[0] != '"':
		p.Odd = true
	case len(v) > len(`""`):
		p.List = append(p.List, Part{Place: Place{Choice: p.at.Choice, Member: m, Call: p.at.Call}, Text: v})
	}
	return ok
}

func (p *Parts) call(int) bool {
	if p.s.Space() != '{' {
		p.Odd = true
		return p.s.Skip()
	}
	first := len(p.List)
	p.at.Call = 0
	var id []byte
	ok := p.s.Members(func(name []byte, _ int) bool {
		switch string(name) {
		case "index":
			v, ok := p.raw()
			p.at.Call = wholeNumber(string(v))
			return ok
		case "id":
			return p.into(&id)
		case "type":
			return p.s.Skip()
		case "function":
			if p.s.Space() != '{' {
				return p.other()
			}
			return p.s.Members(func(name []byte, _ int) bool {
				switch string(name) {
				case "name":
					return p.add(CallName)
				case "arguments":
					return p.add(CallArguments)
				}
				return p.other()
			})
		}
		return p.other()
	})
	for i := range p.List[first:] {
		part := &p.List[first+i]
		if part.Call = p.at.Call; part.Member == CallName {
			part.ID = id
		}
	}
	p.at.Call = 0
	return ok
}

// Left is the rest of an event for one choice: the parts, and the end.
type Left struct {
	Choice int
	// Parts have the text itself, or of Probabilities the raw list. A tool call that has an ID begins here.
	Parts []Part
	// End is nil where the choice does not end.
	End *End
	// Completion is set for the form of /v1/completions.
	Completion bool
	// Tail is the event's; nil where it has none.
	Tail []byte
}

// Append appends the JSON of one event under head that has all of it.
func (l *Left) Append(dst, head []byte) []byte {
	dst = strconv.AppendInt(append(append(dst, head...), `"choices":[{"index":`...), int64(l.Choice), 10)
	if l.Completion {
		text := ""
		for i := range l.Parts {
			text += string(l.Parts[i].Text)
		}
		dst = rawjson.AppendString(append(dst, `,"text":`...), text)
	} else {
		dst = append(l.delta(append(dst, `,"delta":{`...)), '}')
	}
	dst = append(l.probabilities(append(dst, `,"logprobs":`...)), ',')
	if l.Tail != nil {
		return append(dst, l.Tail...)
	}
	if l.End == nil {
		return append(dst, `"finish_reason":null}]}`...)
	}
	dst = append(append(dst, `"finish_reason":`...), l.End.Finish...)
	return append(orNull(append(dst, `,"stop_reason":`...), l.End.Stop), `}]}`...)
}

// probabilities appends the log probabilities.
func (l *Left) probabilities(dst []byte) []byte {
	for i := range l.Parts {
		if l.Parts[i].Member == Probabilities {
			return append(append(append(dst, `{"content":`...), l.Parts[i].Text...), '}')
		}
	}
	return append(dst, "null"...)
}

// delta appends the members of the delta.
func (l *Left) delta(dst []byte) []byte {
	first, quiet := len(dst), true
	comma := func() {
		if len(dst) > first {
			dst = append(dst, ',')
		}
	}
	call, calls := -1, 0
	for i := range l.Parts {
		switch p := &l.Parts[i]; p.Member {
		case Content, Reasoning, ReasoningContent, Refusal:
			comma()
			dst = rawjson.AppendString(append(append(append(dst, '"'), memberNames[p.Member]...), `":`...), string(p.Text))
		case CallName, CallArguments:
			calls++
		case Probabilities:
			quiet = false
		case CompletionText:
		}
	}
	if calls == 0 {
		if len(dst) == first && !quiet { // tokens without a text
			return append(dst, `"content":""`...)
		}
		return dst
	}
	comma()
	dst = append(dst, `"tool_calls":[`...)
	for i := range l.Parts {
		p := &l.Parts[i]
		if p.Member != CallName && p.Member != CallArguments {
			continue
		}
		member := `"arguments":`
		if p.Member == CallName {
			member = `"name":`
		}
		if p.Call == call {
			dst = rawjson.AppendString(append(append(dst, ','), member...), string(p.Text))
			continue
		}
		if call >= 0 {
			dst = append(dst, "}},"...)
		}
		call = p.Call
		dst = strconv.AppendInt(append(dst, `{"index":`...), int64(call), 10)
		if p.ID != nil {
			dst = append(append(append(dst, `,"id":`...), p.ID...), `,"type":"function"`...)
		}
		dst = rawjson.AppendString(append(append(dst, `,"function":{`...), member...), string(p.Text))
	}
	return append(dst, "}}]"...)
}
