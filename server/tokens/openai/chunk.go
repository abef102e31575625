package openai

import "github.com/kvpilot/kvpilot/server/tokens/rawjson"

// Chunk is one event of a chat or completion stream. Its slices are raw JSON and share
// memory with the event; nil is null or absent.
type Chunk struct {
	// Head is the object up to its choices: the brace, id, object, created and model, each with its comma.
	Head []byte
	// Choices counts the choices; the rest is about the first one. Its Index is 0 in a stream of one.
	Choices, Index int
	// Text is the string of delta.content or text, Delta the whole delta where that is not Plain.
	Text, Delta []byte
	// Plain says that the choice adds nothing but Text and Logprobs: no reasoning, no tool calls. Empty
	// says that a delta has no member at all.
	Plain, Empty bool
	Finish, Stop []byte
	// Logprobs is an object of the API's form.
	Logprobs []byte
	// IDs and PromptIDs are lists of token ids.
	IDs, PromptIDs     []byte
	Usage, Fingerprint []byte
	// Fault is the code of an error object, 0 when there is none; 500 when it gives none.
	Fault int
	// Nulls are members without a value.
	Nulls Nulls

	data              []byte
	text, ids, prompt place
}

// Nulls are members that vLLM writes since 0.33, although they are null.
type Nulls struct {
	// Versions is weight_versions of the choice, Transfer kv_transfer_params of the event.
	Versions, Transfer bool
}

// place is where a value is in the event; to is 0 when there is none.
type place struct{ from, to int }

// readChunk reads the JSON of one event. It is false for any other text.
func readChunk(data []byte, c *Chunk) bool {
	*c = Chunk{data: data, Plain: true}
	r := chunkReader{s: rawjson.Scanner{Data: data}, c: c}
	if r.s.Space() != '{' || r.s.Pos != 0 {
		return false
	}
	ok := r.s.Members(r.member)
	if c.Plain {
		c.Delta = nil
	}
	return ok
}

type chunkReader struct {
	s rawjson.Scanner
	c *Chunk
}

// raw reads one value: nil when it is null.
func (r *chunkReader) raw() ([]byte, place, bool) {
	from := r.s.Pos
	if !r.s.Skip() {
		return nil, place{}, false
	}
	v := r.s.Data[from:r.s.Pos]
	if string(v) == "null" {
		return nil, place{from, r.s.Pos}, true
	}
	return v, place{from, r.s.Pos}, true
}

// into reads one value into dst.
func (r *chunkReader) into(dst *[]byte) (ok bool) {
	*dst, _, ok = r.raw()
	return ok
}

// text reads the text, and where it is.
func (r *chunkReader) text() (ok bool) {
	r.c.Text, r.c.text, ok = r.raw()
	return ok
}

// list reads a list of ids, and where it is when it is not null.
func (r *chunkReader) list(dst *[]byte, at *place) bool {
	if from := r.s.Pos; r.s.SkipIDs() {
		*dst, *at = r.s.Data[from:r.s.Pos], place{from, r.s.Pos}
		return true
	}
	v, p, ok := r.raw()
	if v != nil {
		*dst, *at = v, p
	}
	return ok
}

func (r *chunkReader) member(name []byte, start int) bool {
	c := r.c
	switch string(name) {
	case "choices":
		c.Head = r.s.Data[:start]
		if r.s.Space() != '[' {
			c.Plain = false
			return r.s.Skip()
		}
		return r.s.Elements(r.choice)
	case "usage":
		return r.into(&c.Usage)
	case "system_fingerprint":
		return r.into(&c.Fingerprint)
	case "prompt_token_ids":
		return r.list(&c.PromptIDs, &c.prompt)
	case "error":
		return r.fault()
	case "kv_transfer_params":
		v, _, ok := r.raw()
		c.Nulls.Transfer = v == nil
		return ok
	}
	return r.s.Skip()
}

func (r *chunkReader) choice(at int) bool {
	c := r.c
	c.Choices++
	if at > 0 || r.s.Space() != '{' {
		c.Plain = false
		return r.s.Skip()
	}
	return r.s.Members(func(name []byte, _ int) bool {
		switch string(name) {
		case "index":
			v, _, ok := r.raw()
			c.Index = wholeNumber(string(v))
			return ok
		case "text":
			return r.text()
		case "delta":
			return r.delta()
		case "finish_reason":
			return r.into(&c.Finish)
		case "stop_reason":
			return r.into(&c.Stop)
		case "logprobs":
			return r.into(&c.Logprobs)
		case "token_ids":
			return r.list(&c.IDs, &c.ids)
		case "prompt_token_ids":
			return r.list(&c.PromptIDs, &c.prompt)
		case "weight_versions":
			c.Nulls.Versions = true
		}
		return r.other()
	})
}

// delta reads the members that chat adds.
func (r *chunkReader) delta() bool {
	if r.s.Space() != '{' {
		r.c.Plain = false
		return r.s.Skip()
	}
	r.c.Empty = true
	from := r.s.Pos
	ok := r.s.Members(func(name []byte, _ int) bool {
		r.c.Empty = false
		switch string(name) {
		case "content":
			return r.text()
		case "role":
			return r.s.Skip()
		}
		return r.other()
	})
	r.c.Delta = r.s.Data[from:r.s.Pos]
	return ok
}

// other reads a member that a plain choice has as null or as an empty list only.
func (r *chunkReader) other() bool {
	v, _, ok := r.raw()
	r.c.Plain = r.c.Plain && (v == nil || string(v) == "[]")
	return ok
}

// fault reads an error object.
func (r *chunkReader) fault() bool {
	c := r.c
	switch r.s.Space() {
	case 'n':
		return r.s.Skip()
	case '{':
	default:
		c.Fault = 500
		return r.s.Skip()
	}
	c.Fault = 500
	return r.s.Members(func(name []byte, _ int) bool {
		v, _, ok := r.raw()
		if string(name) == "code" {
			if n := wholeNumber(string(v)); n >= 400 {
				c.Fault = n
			} else if len(v) > 2 && v[0] == '"' && string(v) != `"server_error"` {
				c.Fault = 400 // the Rust front end names the client's faults
			}
		}
		return ok
	})
}

// Without appends the event's JSON with the lists of ids made null, as it is for a client that did
// not ask for them.
func (c *Chunk) Without(dst []byte) []byte {
	first, second := c.ids, c.prompt
	if first.to == 0 || second.to > 0 && second.from < first.from {
		first, second = second, first
	}
	at := 0
	for _, p := range [2]place{first, second} {
		if p.to > 0 {
			dst = append(append(dst, c.data[at:p.from]...), "null"...)
			at = p.to
		}
	}
	return append(dst, c.data[at:]...)
}

// AppendText appends the text of a raw JSON string; nothing for anything else.
func AppendText(dst, text []byte) []byte {
	if len(text) < 2 || text[0] != '"' {
		return dst
	}
	return append(dst, rawjson.TextOf(text).Bytes()...)
}

// EachID calls visit with each id of a raw list, until it is false. It is false when that happened,
// or the list holds anything else.
func EachID(raw []byte, visit func(id uint32) bool) bool {
	if len(raw) < 2 || raw[0] != '[' {
		return false
	}
	n, digits := uint64(0), 0
	for _, b := range raw[1:] {
		switch {
		case b >= '0' && b <= '9' && digits < 10:
			n, digits = n*10+uint64(b-'0'), digits+1
		case b == ' ':
		case b == ',' || b == ']':
			if digits == 0 {
				return b == ']' && len(raw) == 2
			}
			if n > 1<<32-1 || !visit(uint32(n)) {
				return false
			}
			n, digits = 0, 0
		default:
			return false
		}
	}
	return true
}

// cachedTokens is the prompt's cached part by Usage, -1 when it has none.
func (c *Chunk) cachedTokens() int {
	details := memberOf(c.Usage, "prompt_tokens_details")
	return count(memberOf(details, "cached_tokens"))
}

// OutputTokens is how many tokens the answer has by Usage, -1 when it does not say.
func (c *Chunk) OutputTokens() int { return count(memberOf(c.Usage, "completion_tokens")) }

// memberOf returns the raw value of a member of an object, nil when there is none.
func memberOf(object []byte, name string) []byte {
	if at := memberAt(object, name); at.to > 0 {
		return object[at.from:at.to]
	}
	return nil
}

// memberAt is where the value of a member of an object is; its to is 0 when there is none.
func memberAt(object []byte, name string) (at place) {
	s := rawjson.Scanner{Data: object}
	if len(object) == 0 || s.Space() != '{' {
		return place{}
	}
	s.Members(func(n []byte, _ int) bool {
		from := s.Pos
		ok := s.Skip()
		if ok && string(n) == name {
			at = place{from, s.Pos}
		}
		return ok
	})
	return at
}

// count reads a number, -1 for anything else.
func count(raw []byte) int {
	if len(raw) == 0 || string(raw) == "null" {
		return -1
	}
	return wholeNumber(string(raw))
}
