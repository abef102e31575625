package tokenizertest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Message is one chat message as templates see it.
type Message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Reasoning string          `json:"reasoning"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// Text is the content's text.
func (m Message) Text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct{ Text string }
	if json.Unmarshal(m.Content, &parts) == nil {
		for _, p := range parts {
			s += p.Text
		}
	}
	return s
}

// Chat is what a template renders.
type Chat struct {
	Messages []Message
	Tools    json.RawMessage
	Kwargs   map[string]any
	// Generate is add_generation_prompt, Continue continue_final_message.
	Generate bool
	Continue bool
}

func (c *Chat) lastUser() int {
	for i := len(c.Messages) - 1; i >= 0; i-- {
		if c.Messages[i].Role == "user" {
			return i
		}
	}
	return -1
}

func (c *Chat) tools() string {
	if len(c.Tools) == 0 || string(c.Tools) == "null" {
		return ""
	}
	return string(c.Tools)
}

// Template renders a chat as text.
type Template func(*Chat) string

// Specials are the special tokens of all templates here.
var Specials = []string{"<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|end_header|>", "<|eot|>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "</s>"}

// Templates are the templates by name.
var Templates = map[string]Template{
	"chatml": chatML, "llama3": llama3, "think": think, "mistral": mistral, "plain": plain,
	"counted": counted, "merged": merged, "shortened": shortened, "trimmed": trimmed,
}

// chatML: each message in its own frame; kwargs may ask for an empty thought.
func chatML(c *Chat) string {
	var b strings.Builder
	if t := c.tools(); t != "" {
		fmt.Fprintf(&b, "<|im_start|>system\n# Tools\n%s<|im_end|>\n", t)
	}
	if docs, ok := c.Kwargs["documents"]; ok {
		fmt.Fprintf(&b, "<|im_start|>system\n# Documents\n%v<|im_end|>\n", docs)
	}
	for i, m := range c.Messages {
		fmt.Fprintf(&b, "<|im_start|>%s\n%s", m.Role, m.Text())
		if len(m.ToolCalls) > 0 {
			fmt.Fprintf(&b, "\n<tool_call>\n%s\n</tool_call>", m.ToolCalls)
		}
		if c.Continue && i == len(c.Messages)-1 {
			return b.String()
		}
		b.WriteString("<|im_end|>\n")
	}
	if c.Generate {
		b.WriteString("<|im_start|>assistant\n")
		if c.Kwargs["enable_thinking"] == false {
			b.WriteString("<think>\n\n</think>\n\n")
		}
	}
	return b.String()
}

// llama3: headers as special tokens, contents trimmed, a beginning-of-text token.
func llama3(c *Chat) string {
	var b strings.Builder
	b.WriteString("<|begin|>")
	for _, m := range c.Messages {
		fmt.Fprintf(&b, "<|header|>%s<|end_header|>\n\n%s<|eot|>", m.Role, strings.TrimSpace(m.Text()))
	}
	if c.Generate {
		b.WriteString("<|header|>assistant<|end_header|>\n\n")
	}
	return b.String()
}

// think: like chatML, but thoughts are shown only behind the last user message.
func think(c *Chat) string {
	last := c.lastUser()
	var b strings.Builder
	for i, m := range c.Messages {
		text := m.Text()
		if m.Role == "assistant" {
			thought := m.Reasoning
			if before, after, ok := strings.Cut(text, "</think>"); ok {
				thought = strings.TrimPrefix(before, "<think>")
				text = strings.TrimLeft(after, "\n")
			}
			if i > last && thought != "" {
				text = "<think>\n" + strings.TrimSpace(thought) + "\n</think>\n\n" + text
			}
		}
		fmt.Fprintf(&b, "<|im_start|>%s\n%s", m.Role, text)
		if len(m.ToolCalls) > 0 {
			fmt.Fprintf(&b, "\n<tool_call>\n%s\n</tool_call>", m.ToolCalls)
		}
		b.WriteString("<|im_end|>\n")
	}
	if c.Generate {
		b.WriteString("<|im_start|>assistant\n")
	}
	return b.String()
}

// mistral: tools stand before the last user message and move with it; no generation prompt.
func mistral(c *Chat) string {
	last := c.lastUser()
	var b strings.Builder
	for i, m := range c.Messages {
		switch m.Role {
		case "user", "system":
			if t := c.tools(); t != "" && i == last {
				fmt.Fprintf(&b, "[TOOLS]%s[/TOOLS]", t)
			}
			fmt.Fprintf(&b, "[INST] %s[/INST]", m.Text())
		default:
			fmt.Fprintf(&b, " %s</s>", m.Text())
		}
	}
	return b.String()
}

// plain: no special tokens at all, so merges reach over every boundary.
func plain(c *Chat) string {
	var b strings.Builder
	for _, m := range c.Messages {
		fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Text())
	}
	if c.Generate {
		b.WriteString("assistant:")
	}
	return b.String()
}

// counted: the number of messages stands in front of all of them.
func counted(c *Chat) string {
	return fmt.Sprintf("<|begin|>messages: %d\n", len(c.Messages)) + chatML(c)
}

// merged: system messages from anywhere are moved to the front.
func merged(c *Chat) string {
	var system []string
	rest := *c
	rest.Messages = nil
	for _, m := range c.Messages {
		if m.Role == "system" {
			system = append(system, m.Text())
		} else {
			rest.Messages = append(rest.Messages, m)
		}
	}
	return "<|im_start|>system\n" + strings.Join(system, "\n") + "<|im_end|>\n" + chatML(&rest)
}

// shortened: long tool results are cut unless they are behind the last assistant message.
func shortened(c *Chat) string {
	short := *c
	short.Messages = append([]Message(nil), c.Messages...)
	fresh := true
	for i := len(short.Messages) - 1; i >= 0; i-- {
		m := &short.Messages[i]
		if m.Role == "assistant" {
			fresh = false
		}
		if text := m.Text(); m.Role == "tool" && !fresh && len(text) > 200 {
			m.Content, _ = json.Marshal(text[:200] + "...") // a string always marshals
		}
	}
	return chatML(&short)
}

// trimmed: the space around the last message's content is kept, that of older ones is not.
func trimmed(c *Chat) string {
	cut := *c
	cut.Messages = append([]Message(nil), c.Messages...)
	for i := range cut.Messages[:max(0, len(cut.Messages)-1)] {
		cut.Messages[i].Content, _ = json.Marshal(strings.TrimSpace(cut.Messages[i].Text())) // as above
	}
	return chatML(&cut)
}
