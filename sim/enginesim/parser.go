package enginesim

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// Answers that a parser takes apart: by the simulator's conventions an answer calls a tool (see toolCall), and begins with a thought when
// the last user message contains "think first".
const (
	thinkStart, thinkEnd = "<think>", "</think>"
	thought              = thinkStart + "\nThe user wants me to think before I answer, 你好.\n" + thinkEnd + "\n\n"
	afterThought         = "Having thought about it, I answer with a <tool and a few plain words."
)

// lastUser is the last user message of a conversation that no tool has answered.
func (req *chatRequest) lastUser() string {
	last := ""
	for _, m := range req.Messages {
		switch m.Role {
		case "user":
			last = string(m.Content)
		case "tool":
			last = ""
		}
	}
	return last
}

// thinks reports whether the answer begins with a thought.
func (req *chatRequest) thinks() bool {
	return strings.Contains(req.lastUser(), "think first") && string(req.TemplateKwargs["enable_thinking"]) != "false"
}

// thinks reports whether the answer to the request begins with a thought that the engine's parser takes apart.
func thinks(d *dialect, req *chatRequest) bool {
	return d.features.has(derender) && !d.cfg.NoParser && req.thinks()
}

// forced is the text that the model is made to write for the request; empty: words of its own.
func (d *dialect) forced(req *chatRequest) (string, *toolCall) {
	tool := d.toolCall(req)
	said := ""
	if tool != nil {
		said = vocab.CallText(tool.name, tool.arguments)
	}
	if thinks(d, req) {
		if said == "" {
			said = afterThought
		}
		said = thought + said
	}
	return said, tool
}

// parser takes the text of one answer apart as it comes.
type parser struct {
	tool   *toolCall
	thinks bool
	text   string // of the thought so far
	over   bool   // the thought is over
}

// thinking returns the part of a delta that is thought, and the rest of it.
func (p *parser) thinking(more string) (reasoning, rest string) {
	if !p.thinks || p.over {
		return "", more
	}
	p.text += more
	text := strings.TrimPrefix(p.text, thinkStart)
	at := strings.Index(text, thinkEnd)
	if at < 0 {
		return strings.TrimPrefix(more, thinkStart), ""
	}
	p.over = true
	before := len(p.text) - len(more)
	if from := before - (len(p.text) - len(text)); from >= 0 && from < at {
		reasoning = text[from:at]
	} else if from < 0 {
		reasoning = text[:at]
	}
	return reasoning, strings.TrimLeft(text[at+len(thinkEnd):], "\n")
}

// delta writes the inside of a chunk's delta. The blank lines behind a thought are none of the answer.
func (p *parser) delta(ch *choice, d delta) text {
	reasoning, rest := p.thinking(d.text)
	var b text
	if reasoning != "" {
		b = b.raw(`"reasoning":`).str(reasoning)
	}
	if p.thinks && ch.bare {
		rest = strings.TrimLeft(rest, "\n")
	}
	if rest == "" && p.thinks {
		return b
	}
	ch.bare = false
	var inner text
	if p.tool != nil {
		inner = p.tool.delta(ch, delta{text: rest})
	} else {
		inner = inner.raw(`"content":`).str(rest)
	}
	if len(b) > 0 && len(inner) > 0 {
		b = b.raw(",")
	}
	return append(b, inner...)
}

// pieceKind is what a piece of an answer is.
type pieceKind int

const (
	pieceThought pieceKind = iota
	pieceText
	pieceCall // a tool call, with the beginning of its arguments
)

// piece is a part of an answer, as the routes whose events have names say it.
type piece struct {
	kind pieceKind
	text string
	id   string // of the call
}

// pieces takes a delta apart.
func (p *parser) pieces(ch *choice, d delta) (list []piece) {
	reasoning, rest := p.thinking(d.text)
	if reasoning != "" {
		list = append(list, piece{kind: pieceThought, text: reasoning})
	}
	if p.thinks && ch.bare {
		rest = strings.TrimLeft(rest, "\n")
	}
	if rest == "" {
		return list
	}
	ch.bare = false
	if p.tool == nil {
		return append(list, piece{kind: pieceText, text: rest})
	}
	call, begins, more := p.tool.take(ch, delta{text: rest})
	if begins || more != "" {
		list = append(list, piece{kind: pieceCall, text: more, id: call.id})
	}
	return list
}

// whole takes the answer apart as a whole: what was thought, and what was said unless that is a call.
func (p *parser) whole(ch *choice) (thought, said string) {
	said = string(ch.text)
	if p.thinks {
		if before, after, ok := strings.Cut(strings.TrimPrefix(said, thinkStart), thinkEnd); ok {
			thought, said = before, strings.TrimLeft(after, "\n")
		} else {
			thought, said = before, ""
		}
	}
	return thought, said
}

// called reports whether the answer calls the tool.
func (p *parser) called(ch *choice) bool { return p.tool != nil && ch.finish == "stop" }

// parserFor makes the parser of an answer to a chat, which is made to write what p says.
func parserFor(d *dialect, chat *chatRequest, p *promptIDs) *parser {
	said, tool := d.forced(chat)
	p.forced = said
	return &parser{tool: tool, thinks: thinks(d, chat)}
}

// conversation is the part of a chat that decides what the model is made to write, as the prompt shows it.
func conversation(prompt []uint32) *chatRequest {
	all := vocab.Decode(nil, prompt, false)
	req := &chatRequest{}
	if _, tools, ok := bytes.Cut(all, []byte("\n<tools>\n")); ok {
		tools, _, _ = bytes.Cut(tools, []byte("\n</tools>"))
		for line := range bytes.Lines(tools) {
			req.Tools = append(req.Tools, jsontext.Value(bytes.TrimSpace(line)))
		}
	}
	at := bytes.LastIndex(all, []byte("<|im_start|>user\n"))
	if at < 0 {
		return req
	}
	last, _, _ := bytes.Cut(all[at+len("<|im_start|>user\n"):], []byte("<|im_end|>"))
	m := vocab.Message{Role: "user"}
	if bytes.HasPrefix(last, []byte("<tool_response>")) {
		m.Role = "tool"
	}
	m.Content, _ = json.Marshal(safe(last))
	req.Messages = []vocab.Message{m}
	return req
}
