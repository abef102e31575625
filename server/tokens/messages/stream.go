package messages

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// errChunk is an event that is none of a chat with one choice.
var errChunk = errors.New("an event of a chat stream cannot be said as one of a message")

// Stream makes the events of a message from the chunks of a streamed chat, as vLLM 0.33 does. The zero value is ready. It belongs to one
// goroutine, and keeps the ids of the tool calls, the arguments of the last one, and text that came in the middle of a call: less than the answer.
type Stream struct {
	read  openai.Chunks
	chunk openai.Chunk
	out   []byte

	begun, over bool
	block       block
	next        int // the index of the next block
	ending
	calls map[int]string // the ids of tool calls, as raw JSON
	// used is set once there was a call; arguments is the text of its arguments so far.
	used      bool
	arguments []byte
}

// block is the content block that is open.
type block struct {
	kind kind
	// call is the id of a tool call, raw JSON. pending is text that came within it, which follows it.
	call    string
	pending []byte
}

type kind string

const (
	kindNone     kind = ""
	kindText     kind = "text"
	kindThinking kind = "thinking"
	kindTool     kind = "tool_use"
)

// ending is how the chat has ended: raw JSON, nil before.
type ending struct{ finish, stop []byte }

// Clone returns a Stream that continues from the same place.
func (s *Stream) Clone() *Stream {
	if s == nil {
		return nil
	}
	c := *s
	c.chunk, c.out = openai.Chunk{}, nil
	c.calls = maps.Clone(s.calls)
	c.block.pending, c.arguments = bytes.Clone(s.block.pending), bytes.Clone(s.arguments)
	c.finish, c.stop = bytes.Clone(s.finish), bytes.Clone(s.stop)
	return &c
}

// Begun reports whether Write has returned the beginning of the message.
func (s *Stream) Begun() bool { return s.begun }

// Write takes whole events and comments of a chat, and returns the events of the message, valid until the next call. PromptTokens is the length of the
// prompt; it is read at the first event. With an error, Write returns the events before the rejected event.
func (s *Stream) Write(chat []byte, promptTokens int) ([]byte, error) {
	s.out = s.out[:0]
	for len(chat) > 0 {
		n := bytes.Index(chat, []byte("\n\n")) + 2
		if n < 2 {
			return s.out, errChunk
		}
		e := chat[:n]
		chat = chat[n:]
		if data, ok := bytes.CutPrefix(e[:n-2], []byte("data: ")); ok {
			if err := s.event(data, promptTokens); err != nil {
				return s.out, err
			}
			continue
		}
		if e[0] != ':' {
			return s.out, errChunk
		}
		s.out = append(s.out, e...)
	}
	return s.out, nil
}

func (s *Stream) event(data []byte, promptTokens int) error {
	c := &s.chunk
	switch {
	case s.over:
		return nil
	case string(data) == "[DONE]":
		s.flush()
		s.say("message_stop", nil)
		s.over = true
		return nil
	case !s.read.Read(data, c):
		return errChunk
	case c.Fault > 0:
		return s.fault(data, c.Fault)
	case c.Choices > 1:
		return errChunk
	}
	if !s.begun {
		if !s.begin(c, promptTokens) {
			return errChunk
		}
		if c.Choices == 1 && c.Finish == nil && c.Plain && len(c.Text) <= len(`""`) {
			return nil
		}
	}
	if c.Choices == 0 {
		return s.end(c.Usage)
	}
	if c.Finish != nil {
		s.finish, s.stop = append(s.finish[:0], c.Finish...), append(s.stop[:0], c.Stop...)
	}
	if c.Plain {
		s.text(c.Text)
		return nil
	}
	if thought := rawjson.Member(c.Delta, "reasoning"); len(thought) > len(`""`) && thought[0] == '"' {
		if s.block.kind != kindThinking {
			s.flush()
			s.open(block{kind: kindThinking}, `{"type":"thinking","thinking":""}`)
		}
		s.delta("thinking_delta", "thinking", thought)
	}
	s.text(c.Text)
	if calls := rawjson.Member(c.Delta, "tool_calls"); !rawjson.IsNull(calls) {
		ok := true
		err := rawjson.Elements(calls, func(call []byte) bool {
			ok = s.call(call)
			return ok
		})
		if err != nil || !ok {
			return errChunk
		}
	}
	return nil
}

// begin writes the event that begins the message, with the id and the model of the chunk.
func (s *Stream) begin(c *openai.Chunk, promptTokens int) bool {
	head := append(bytes.TrimSuffix(bytes.TrimRight(bytes.Clone(c.Head), " "), []byte{','}), '}')
	id, model := rawjson.Member(head, "id"), rawjson.Member(head, "model")
	if len(id) == 0 || id[0] != '"' || len(model) == 0 || model[0] != '"' || promptTokens <= 0 {
		return false
	}
	s.begun = true
	m := append(append([]byte(`,"message":{"id":`), id...), `,"type":"message","role":"assistant","content":[],"model":`...)
	m = append(append(m, model...), `,"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":`...)
	m = append(strconv.AppendInt(m, int64(promptTokens), 10), `,"output_tokens":0}}`...)
	s.say("message_start", m)
	return true
}

// say appends an event with the members after its type.
func (s *Stream) say(name string, members []byte) {
	s.out = append(append(s.out, "event: "...), name...)
	s.out = append(append(append(s.out, "\ndata: {\"type\":\""...), name...), '"')
	s.out = append(append(s.out, members...), "}\n\n"...)
}

// open begins a block. Its index is the next one.
func (s *Stream) open(b block, content string) {
	s.block = b
	m := append([]byte(`,"content_block":`), content...)
	s.say("content_block_start", strconv.AppendInt(append(m, `,"index":`...), int64(s.next), 10))
}

// delta adds text, raw JSON, to the block.
func (s *Stream) delta(kind, member string, text []byte) {
	s.out = append(append(s.out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\""...), kind...)
	s.out = append(append(append(s.out, `","`...), member...), `":`...)
	s.out = append(append(s.out, text...), `},"index":`...)
	s.out = append(strconv.AppendInt(s.out, int64(s.next), 10), "}\n\n"...)
}

// close ends the block that is open. A thought is signed, with a number that means nothing.
func (s *Stream) close() {
	if s.block.kind == kindNone {
		return
	}
	if s.block.kind == kindThinking {
		var sign [16]byte
		rand.Read(sign[:])
		s.delta("signature_delta", "signature", rawjson.AppendString(nil, hex.EncodeToString(sign[:])))
	}
	s.say("content_block_stop", strconv.AppendInt([]byte(`,"index":`), int64(s.next), 10))
	s.block = block{}
	s.next++
}

// flush ends the block that is open, and says the text that came within a call.
func (s *Stream) flush() {
	text := s.block.pending
	s.close()
	if len(text) == 0 {
		return
	}
	s.openText()
	s.delta("text_delta", "text", rawjson.AppendString(nil, string(text)))
	s.close()
}

func (s *Stream) openText() { s.open(block{kind: kindText}, `{"type":"text","text":""}`) }

func (s *Stream) text(raw []byte) {
	if len(raw) <= len(`""`) {
		return
	}
	switch s.block.kind {
	case kindTool:
		s.block.pending = openai.AppendText(s.block.pending, raw)
		return
	case kindText:
	case kindNone, kindThinking:
		s.flush()
		s.openText()
	}
	s.delta("text_delta", "text", raw)
}

// call takes one entry of a delta's tool calls.
func (s *Stream) call(entry []byte) bool {
	index, err := strconv.Atoi(string(rawjson.Member(entry, "index")))
	if err != nil || index < 0 {
		return false
	}
	function := rawjson.Member(entry, "function")
	var name, arguments []byte
	if !rawjson.IsNull(function) {
		name, arguments = rawjson.Member(function, "name"), rawjson.Member(function, "arguments")
	}
	id := string(rawjson.Member(entry, "id"))
	if id == "" || id == "null" {
		known, there := s.calls[index]
		if !there || s.block.kind != kindTool || s.block.call != known {
			return true
		}
	} else {
		if s.calls == nil {
			s.calls = map[int]string{}
		}
		s.calls[index] = id
		if (s.block.kind != kindTool || s.block.call != id) && !rawjson.IsNull(name) {
			s.flush()
			s.used, s.arguments = true, s.arguments[:0]
			s.open(block{kind: kindTool, call: id}, `{"type":"tool_use","id":`+id+`,"name":`+string(name)+`,"input":{}}`)
		}
		if s.block.kind != kindTool || s.block.call != id {
			return true
		}
	}
	if len(arguments) > len(`""`) && arguments[0] == '"' {
		s.arguments = openai.AppendText(s.arguments, arguments)
		s.delta("input_json_delta", "partial_json", arguments)
	}
	return true
}

// end writes why the answer is over, and its usage.
func (s *Stream) end(usage []byte) error {
	if usage == nil {
		return errChunk
	}
	s.flush()
	reason, sequence := s.reason()
	m := append(append(append([]byte(`,"delta":{"stop_reason":`), reason...), `,"stop_sequence":`...), sequence...)
	m, ok := appendUsage(append(m, `},"usage":`...), usage)
	if !ok {
		return errChunk
	}
	s.say("message_delta", m)
	return nil
}

// reason is the stop reason and the stop sequence, as raw JSON.
func (s *Stream) reason() (reason, sequence string) {
	finish := string(s.finish)
	switch finish {
	case `"length"`:
		return `"max_tokens"`, "null"
	case "", `"stop"`, `"tool_calls"`:
	default:
		return "null", "null"
	}
	switch {
	case s.used && jsontext.Value(s.arguments).IsValid():
		return `"tool_use"`, "null"
	case len(s.stop) > 0 && s.stop[0] == '"':
		return `"stop_sequence"`, string(s.stop)
	case s.used, finish == `"tool_calls"`:
		return `"tool_use"`, "null"
	}
	return `"end_turn"`, "null"
}

// appendUsage appends Anthropic's usage for OpenAI's: the prompt in three parts, of which the last two are there when they are counted.
func appendUsage(dst, usage []byte) ([]byte, bool) {
	number := func(of []byte, name string) (int, bool) {
		n, err := strconv.Atoi(string(rawjson.Member(of, name)))
		return n, err == nil
	}
	prompt, ok := number(usage, "prompt_tokens")
	output, _ := number(usage, "completion_tokens") // null is 0
	var read, created int
	var hasRead, hasCreated bool
	if details := rawjson.Member(usage, "prompt_tokens_details"); !rawjson.IsNull(details) {
		read, hasRead = number(details, "cached_tokens")
		created, hasCreated = number(details, "created_cache_tokens")
	}
	dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), int64(max(0, prompt-read-created)), 10)
	dst = strconv.AppendInt(append(dst, `,"output_tokens":`...), int64(output), 10)
	if hasCreated {
		dst = strconv.AppendInt(append(dst, `,"cache_creation_input_tokens":`...), int64(created), 10)
	}
	if hasRead {
		dst = strconv.AppendInt(append(dst, `,"cache_read_input_tokens":`...), int64(read), 10)
	}
	return append(dst, '}'), ok
}

// fault ends the message with an engine's error.
func (s *Stream) fault(data []byte, status int) error {
	text := rawjson.Member(rawjson.Member(data, "error"), "message")
	if len(text) == 0 || text[0] != '"' {
		text = []byte(`"the engine reported a failure"`)
	}
	s.close()
	m := rawjson.AppendString([]byte(`,"error":{"type":`), faultType(status))
	s.say("error", append(append(append(m, `,"message":`...), text...), '}'))
	s.over = true
	return nil
}
