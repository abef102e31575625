package openai

import (
	"bytes"
	"strconv"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// NamedKind is what an event of /v1/messages or /v1/responses does to an answer.
type NamedKind byte

// The kinds.
const (
	// NamedStep: something begins or is said as a whole.
	NamedStep NamedKind = iota
	// NamedGrows: a place of the answer grows by Text.
	NamedGrows
	// NamedCloses: a part of the answer is over. An engine says so, too, of an answer that it aborts, and more follows at once.
	NamedCloses
	// NamedQuiet: it says nothing of the answer.
	NamedQuiet
	// NamedFinish: Anthropic's stop reason; NamedEnd: the last event.
	NamedFinish
	NamedEnd
	// NamedAborted: the engine aborted the answer. NamedFault: it reports an error, of the code Fault.
	NamedAborted
	NamedFault
	// NamedOdd: more than is understood here, such as log probabilities.
	NamedOdd
)

// Named is one event of a stream of /v1/messages or /v1/responses. Its slices share memory with the event, but for Same.
type Named struct {
	Kind NamedKind
	// Same is what another engine's event of the same answer has in common with it: all of it without ids, times, numbers of events, usage, and Text.
	Same []byte
	// Text is the raw string by which a place grows.
	Text []byte
	// IDs are the raw ids in it, in their order.
	IDs [][]byte
	// Created is the raw time of a response, Sequence the number of the event; nil when it has none.
	Created, Sequence []byte
	Fault             int

	data  []byte
	s     rawjson.Scanner
	kind  []byte // its type
	spots []differing
	// reason: it has a stop reason.
	reason bool
}

// differing is a place in the event that may differ for the client.
type differing struct {
	place
	what byte
}

// What is at a spot.
const (
	spotID = iota
	spotCreated
	spotSequence
	spotText
)

// Read reads the JSON of one event; false for what is no such object.
func (n *Named) Read(data []byte) bool {
	*n = Named{Same: n.Same[:0], IDs: n.IDs[:0], spots: n.spots[:0], data: data, s: rawjson.Scanner{Data: data}}
	if n.s.Space() != '{' || n.s.Pos != 0 {
		return false
	}
	if !n.object(n.member) {
		return false
	}
	if n.Kind == NamedStep {
		n.Kind = n.of()
	}
	return true
}

// of is the kind of an event by its type.
func (n *Named) of() NamedKind {
	switch kind := string(n.kind); {
	case n.Text != nil && len(n.Text) <= len(`""`), kind == "ping", kind == "keepalive":
		return NamedQuiet
	case n.Text != nil:
		return NamedGrows
	case kind == "message_stop", kind == "response.completed", kind == "response.incomplete":
		return NamedEnd
	case kind == "message_delta" && !n.reason:
		return NamedAborted
	case kind == "message_delta":
		return NamedFinish
	case kind == "content_block_stop", bytes.HasSuffix(n.kind, []byte(".done")):
		return NamedCloses
	case kind == "error", kind == "response.failed":
		n.Fault = max(n.Fault, 500)
		return NamedFault
	}
	return NamedStep
}

// object writes an object into Same, of which member reads the values.
func (n *Named) object(member func(name []byte) bool) bool {
	n.Same = append(n.Same, '{')
	ok := n.s.Members(func(name []byte, _ int) bool {
		before := len(n.Same)
		n.Same = append(append(n.Same, name...), ':')
		begun := len(n.Same)
		ok := member(name)
		if len(n.Same) == begun {
			n.Same = n.Same[:before]
		}
		return ok
	})
	n.Same = append(n.Same, '}')
	return ok
}

// raw reads one value, and where it is: nil for null.
func (n *Named) raw() ([]byte, place, bool) {
	from := n.s.Pos
	ok := n.s.Skip()
	at := place{from, n.s.Pos}
	if v := n.data[from:n.s.Pos]; string(v) != "null" {
		return v, at, ok
	}
	return nil, at, ok
}

// spot reads a value that may differ for the client.
func (n *Named) spot(what byte) ([]byte, bool) {
	v, at, ok := n.raw()
	if v != nil {
		n.spots = append(n.spots, differing{at, what})
	}
	return v, ok
}

func (n *Named) member(name []byte) bool {
	switch string(name) {
	case "type":
		v, _, ok := n.raw()
		n.kind = bytes.Trim(v, `"`)
		n.Same = append(n.Same, v...)
		return ok
	case "sequence_number":
		v, ok := n.spot(spotSequence)
		n.Sequence = v
		return ok
	case "response":
		if n.s.Space() != '{' {
			return n.value(name)
		}
		return n.s.Members(n.ofResponse)
	case "delta":
		return n.delta()
	case "error":
		return n.fault()
	case "logprobs":
		v, _, ok := n.raw()
		if v != nil && !idle(v) {
			n.Kind = NamedOdd
		}
		return ok
	}
	return n.value(name)
}

// value reads a member that is compared, but for ids and times.
func (n *Named) value(name []byte) bool {
	switch string(name) {
	case "id", "item_id", "call_id", "response_id":
		v, ok := n.spot(spotID)
		if v != nil {
			n.IDs = append(n.IDs, v)
		}
		return ok
	case "usage", "signature", "obfuscation", "created_at", "completed_at":
		return n.s.Skip()
	}
	switch n.s.Space() {
	case '{':
		return n.object(n.value)
	case '[':
		n.Same = append(n.Same, '[')
		ok := n.s.Elements(func(int) bool {
			n.Same = append(n.Same, ',')
			return n.value(nil)
		})
		n.Same = append(n.Same, ']')
		return ok
	}
	v, _, ok := n.raw()
	n.Same = append(n.Same, v...)
	return ok
}

// ofResponse reads a member of a whole response: only what identifies it and its items. The rest repeats what other events say.
func (n *Named) ofResponse(name []byte, _ int) bool {
	switch string(name) {
	case "id":
		before := len(n.Same)
		ok := n.value(name)
		n.Same = n.Same[:before]
		return ok
	case "output":
		before := len(n.Same)
		ok := n.value(nil)
		n.Same = n.Same[:before]
		return ok
	case "created_at":
		v, ok := n.spot(spotCreated)
		n.Created = v
		return ok
	}
	return n.s.Skip()
}

// delta reads what a place grows by.
func (n *Named) delta() bool {
	switch n.s.Space() {
	case '"':
		return n.text()
	case '{':
	default:
		return n.value(nil)
	}
	return n.object(func(name []byte) bool {
		switch string(name) {
		case "text", "thinking", "partial_json":
			return n.text()
		case "signature": // random, in front of the end of its block
			n.Kind = NamedCloses
			return n.s.Skip()
		case "stop_reason":
			v, _, ok := n.raw()
			n.reason = v != nil
			n.Same = append(n.Same, v...)
			return ok
		}
		return n.value(name)
	})
}

func (n *Named) text() (ok bool) {
	if n.Text != nil || n.s.Space() != '"' {
		n.Kind = NamedOdd
		return n.s.Skip()
	}
	n.Text, ok = n.spot(spotText)
	return ok
}

// fault reads an error object, of OpenAI's or Anthropic's form.
func (n *Named) fault() bool {
	if n.s.Space() == 'n' {
		return n.s.Skip()
	}
	n.Kind, n.Fault = NamedFault, 500
	if n.s.Space() != '{' {
		return n.s.Skip()
	}
	return n.s.Members(func(name []byte, _ int) bool {
		v, _, ok := n.raw()
		switch string(name) {
		case "code":
			if code := wholeNumber(string(v)); code >= 400 {
				n.Fault = code
			}
		case "type":
			switch string(v) {
			case `"invalid_request_error"`, `"not_found_error"`, `"permission_error"`, `"authentication_error"`, `"request_too_large"`, `"rate_limit_error"`:
				n.Fault = 400
			}
		}
		return ok
	})
}

// Client is what an event is to a client whose stream another engine has begun.
type Client struct {
	// ID returns the client's raw id for the engine's.
	ID func(raw []byte) []byte
	// Created is the raw time of the client's response, Sequence the number of the event.
	Created  []byte
	Sequence int
	// Rest is the part of Text that the client lacks, where that is not all of it.
	Rest []byte
}

// For appends the JSON of the event for the client.
func (n *Named) For(dst []byte, c *Client) []byte {
	from := 0
	for _, s := range n.spots {
		was := n.data[s.from:s.to]
		dst = append(dst, n.data[from:s.from]...)
		from = s.to
		switch {
		case s.what == spotID:
			dst = append(dst, c.ID(was)...)
		case s.what == spotSequence:
			dst = strconv.AppendInt(dst, int64(c.Sequence), 10)
		case s.what == spotCreated && c.Created != nil:
			dst = append(dst, c.Created...)
		case s.what == spotText && c.Rest != nil:
			dst = rawjson.AppendString(dst, string(c.Rest))
		default:
			dst = append(dst, was...)
		}
	}
	return append(dst, n.data[from:]...)
}
