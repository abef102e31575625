package vocab

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// imageTokens is how many tokens stand for one image.
const imageTokens = 64

// Errors of the template; clients see their texts.
var (
	errBothPrompts = errors.New( //nolint:staticcheck // the engine's own words
		"continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you want the model to continue the final message, and add_generation_prompt when you want to add a header that will prompt it to start a new assistant message instead.")
	ErrNoMessages = errors.New("a conversation needs at least one message")
)

// Chat is a conversation to be rendered.
type Chat struct {
	Messages []Message
	// Tools are the raw JSON tool definitions.
	Tools []jsontext.Value
	// GenerationPrompt opens the assistant's turn at the end.
	GenerationPrompt bool
	// Continue leaves the last message open, so that the model continues it.
	Continue bool
	// Kwargs are chat_template_kwargs; the template knows enable_thinking, documents and
	// reasoning_effort, and drops all others.
	Kwargs map[string]jsontext.Value
}

// Message is one turn.
type Message struct {
	Role       string         `json:"role"`
	Content    jsontext.Value `json:"content"`
	Name       string         `json:"name"`
	Reasoning  string         `json:"reasoning"`
	ToolCalls  []Call         `json:"tool_calls"`
	ToolCallID string         `json:"tool_call_id"`
}

// Call is a tool call that an assistant's turn made.
type Call struct {
	Function struct {
		Name string `json:"name"`
		// Arguments is a string of JSON, or the JSON object itself.
		Arguments jsontext.Value `json:"arguments"`
	} `json:"function"`
}

// Item is an image and the tokens that stand for it.
type Item struct {
	ID             string
	Offset, Length int
}

// Rendered is a conversation as the engine sees it.
type Rendered struct {
	IDs   []uint32
	Items []Item
}

// Validate finds a fault that no template can render.
func (c *Chat) Validate() error {
	if len(c.Messages) == 0 {
		return ErrNoMessages
	}
	if c.GenerationPrompt && c.Continue {
		return errBothPrompts
	}
	return nil
}

// Render writes the conversation with the template and encodes it.
func Render(c Chat) (Rendered, error) {
	if err := c.Validate(); err != nil {
		return Rendered{}, err
	}
	var w writer
	w.system(c)
	for i, m := range c.Messages {
		if i == 0 && m.Role == "system" {
			continue // written by system
		}
		if err := w.message(m, c.Continue && i == len(c.Messages)-1); err != nil {
			return Rendered{}, fmt.Errorf("message %d: %w", i, err)
		}
	}
	if c.GenerationPrompt {
		w.WriteString("<|im_start|>assistant\n")
		if string(c.Kwargs["enable_thinking"]) == "false" {
			w.WriteString("<think>\n\n</think>\n\n")
		}
	}
	return w.encode(), nil
}

type writer struct {
	strings.Builder
	images []string
}

func (w *writer) system(c Chat) {
	text := ""
	if first := c.Messages[0]; first.Role == "system" {
		text, _ = w.text(first.Content) // a wrong system message renders as an empty one
	}
	var extra strings.Builder
	if len(c.Tools) > 0 {
		extra.WriteString("\n\n# Tools\n\nYou may call these functions:\n<tools>")
		for _, tool := range c.Tools {
			extra.WriteByte('\n')
			extra.Write(compact(tool))
		}
		extra.WriteString("\n</tools>")
	}
	if docs := c.Kwargs["documents"]; len(docs) > 0 && string(docs) != "null" {
		extra.WriteString("\n\n# Documents\n\n")
		extra.Write(compact(docs))
	}
	if effort := c.Kwargs["reasoning_effort"]; len(effort) > 0 && string(effort) != "null" {
		extra.WriteString("\n\nReasoning effort: ")
		extra.Write(bytes.Trim(effort, `"`))
	}
	if text == "" && extra.Len() == 0 && c.Messages[0].Role != "system" {
		return
	}
	w.WriteString("<|im_start|>system\n" + text + extra.String() + "<|im_end|>\n")
}

func (w *writer) message(m Message, open bool) error {
	text, err := w.text(m.Content)
	if err != nil {
		return err
	}
	role := m.Role
	if role == "tool" {
		role, text = "user", "<tool_response>\n"+text+"\n</tool_response>"
	}
	w.WriteString("<|im_start|>" + role + "\n" + text)
	for i, call := range m.ToolCalls {
		if i > 0 || text != "" {
			w.WriteByte('\n')
		}
		w.WriteString(CallText(call.Function.Name, call.arguments()))
	}
	if !open {
		w.WriteString("<|im_end|>\n")
	}
	return nil
}

// CallText is how the model writes a tool call.
func CallText(name, arguments string) string {
	return CallHead(name) + arguments + callTail
}

// CallHead and CallTail enclose the arguments of a tool call.
func CallHead(name string) string {
	return `<tool_call>` + "\n" + `{"name": "` + name + `", "arguments": `
}

// callTail ends a tool call.
const callTail = "}\n</tool_call>"

func (c Call) arguments() string {
	var text string
	if json.Unmarshal(c.Function.Arguments, &text) == nil {
		return text
	}
	if len(c.Function.Arguments) == 0 {
		return "{}"
	}
	return string(compact(c.Function.Arguments))
}

type part struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL string `json:"url"`
	} `json:"image_url"`
	UUID string `json:"uuid"`
}

// text gives a content's text: a string, null, or a list of parts.
func (w *writer) text(content jsontext.Value) (string, error) {
	if len(content) == 0 || string(content) == "null" {
		return "", nil
	}
	if content[0] == '"' {
		var s string
		err := json.Unmarshal(content, &s, jsontext.AllowInvalidUTF8(true))
		return s, err
	}
	var parts []part
	if err := json.Unmarshal(content, &parts, jsontext.AllowInvalidUTF8(true)); err != nil {
		return "", fmt.Errorf("content: %w", err)
	}
	var b strings.Builder
	for i, p := range parts {
		switch p.Type {
		case "image_url":
			id := p.UUID
			if id == "" {
				sum := sha256.Sum256([]byte(p.ImageURL.URL))
				id = hex.EncodeToString(sum[:])
			}
			w.images = append(w.images, id)
			b.WriteString("<|vision_start|><|image_pad|><|vision_end|>")
		case "text", "input_text", "output_text", "":
			if i > 0 && parts[i-1].Type != "image_url" {
				b.WriteByte('\n')
			}
			b.WriteString(p.Text)
		default:
			return "", fmt.Errorf("unknown part type: %s", p.Type)
		}
	}
	return b.String(), nil
}

// encode turns the text into ids and widens each image's placeholder.
func (w *writer) encode() Rendered {
	ids := EncodePrompt(w.String(), false)
	if len(w.images) == 0 {
		return Rendered{IDs: ids}
	}
	out := Rendered{IDs: make([]uint32, 0, len(ids)+len(w.images)*imageTokens)}
	for _, id := range ids {
		if id != ImagePad || len(out.Items) == len(w.images) {
			out.IDs = append(out.IDs, id)
			continue
		}
		out.Items = append(out.Items, Item{ID: w.images[len(out.Items)], Offset: len(out.IDs), Length: imageTokens})
		for range imageTokens {
			out.IDs = append(out.IDs, ImagePad)
		}
	}
	return out
}

// compact drops the spaces between JSON tokens, so that equal values render alike.
func compact(v jsontext.Value) []byte {
	c := v.Clone()
	if err := c.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return v // not JSON: rendered as it is
	}
	return c
}
