package tokenizer_test

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// contentOf is the text of a message's content.
func contentOf(m vocab.Message) string {
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

// withContent is the message with another text.
func withContent(m vocab.Message, text string) vocab.Message {
	m.Content = jsontext.Value(quoted(text))
	return m
}

func lastUser(c *vocab.Chat) int {
	for i := len(c.Messages) - 1; i >= 0; i-- {
		if c.Messages[i].Role == "user" {
			return i
		}
	}
	return -1
}

func toolsOf(c *vocab.Chat) string {
	if len(c.Tools) == 0 {
		return ""
	}
	return fmt.Sprintf("%s", c.Tools)
}

// template renders a chat as text.
type template func(*vocab.Chat) string

// specials are the special tokens of all templates here.
var specials = []string{"<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|end_header|>", "<|eot|>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "</s>"}

// templates are the templates by name.
var templates = map[string]template{
	"chatml": chatMLTemplate, "llama3": llama3, "think": think, "mistral": mistral, "plain": plain,
	"counted": counted, "merged": merged, "shortened": shortened, "trimmed": trimmed,
}

// chatMLTemplate: each message in its own frame; kwargs may ask for an empty thought.
func chatMLTemplate(c *vocab.Chat) string {
	var b strings.Builder
	if t := toolsOf(c); t != "" {
		fmt.Fprintf(&b, "<|im_start|>system\n# Tools\n%s<|im_end|>\n", t)
	}
	if raw, ok := c.Kwargs["documents"]; ok {
		var docs any
		_ = json.Unmarshal(raw, &docs) // came from JSON
		fmt.Fprintf(&b, "<|im_start|>system\n# Documents\n%v<|im_end|>\n", docs)
	}
	for i, m := range c.Messages {
		fmt.Fprintf(&b, "<|im_start|>%s\n%s", m.Role, contentOf(m))
		if len(m.ToolCalls) > 0 {
			fmt.Fprintf(&b, "\n<tool_call>\n%s\n</tool_call>", m.ToolCalls)
		}
		if c.Continue && i == len(c.Messages)-1 {
			return b.String()
		}
		b.WriteString("<|im_end|>\n")
	}
	if c.GenerationPrompt {
		b.WriteString("<|im_start|>assistant\n")
		if string(c.Kwargs["enable_thinking"]) == "false" {
			b.WriteString("<think>\n\n</think>\n\n")
		}
	}
	return b.String()
}

// llama3: headers as special tokens, contents trimmed, a beginning-of-text token.
func llama3(c *vocab.Chat) string {
	var b strings.Builder
	b.WriteString("<|begin|>")
	for _, m := range c.Messages {
		fmt.Fprintf(&b, "<|header|>%s<|end_header|>\n\n%s<|eot|>", m.Role, strings.TrimSpace(contentOf(m)))
	}
	if c.GenerationPrompt {
		b.WriteString("<|header|>assistant<|end_header|>\n\n")
	}
	return b.String()
}

// think: like chatMLTemplate, but thoughts are shown only behind the last user message.
func think(c *vocab.Chat) string {
	last := lastUser(c)
	var b strings.Builder
	for i, m := range c.Messages {
		text := contentOf(m)
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
	if c.GenerationPrompt {
		b.WriteString("<|im_start|>assistant\n")
	}
	return b.String()
}

// mistral: tools stand before the last user message and move with it; no generation prompt.
func mistral(c *vocab.Chat) string {
	last := lastUser(c)
	var b strings.Builder
	for i, m := range c.Messages {
		switch m.Role {
		case "user", "system":
			if t := toolsOf(c); t != "" && i == last {
				fmt.Fprintf(&b, "[TOOLS]%s[/TOOLS]", t)
			}
			fmt.Fprintf(&b, "[INST] %s[/INST]", contentOf(m))
		default:
			fmt.Fprintf(&b, " %s</s>", contentOf(m))
		}
	}
	return b.String()
}

// plain: no special tokens at all, so merges reach over every boundary.
func plain(c *vocab.Chat) string {
	var b strings.Builder
	for _, m := range c.Messages {
		fmt.Fprintf(&b, "%s: %s\n", m.Role, contentOf(m))
	}
	if c.GenerationPrompt {
		b.WriteString("assistant:")
	}
	return b.String()
}

// counted: the number of messages stands in front of all of them.
func counted(c *vocab.Chat) string {
	return fmt.Sprintf("<|begin|>messages: %d\n", len(c.Messages)) + chatMLTemplate(c)
}

// merged: system messages from anywhere are moved to the front.
func merged(c *vocab.Chat) string {
	var system []string
	rest := *c
	rest.Messages = nil
	for _, m := range c.Messages {
		if m.Role == "system" {
			system = append(system, contentOf(m))
		} else {
			rest.Messages = append(rest.Messages, m)
		}
	}
	return "<|im_start|>system\n" + strings.Join(system, "\n") + "<|im_end|>\n" + chatMLTemplate(&rest)
}

// shortened: long tool results are cut unless they are behind the last assistant message.
func shortened(c *vocab.Chat) string {
	short := *c
	short.Messages = append([]vocab.Message(nil), c.Messages...)
	fresh := true
	for i := len(short.Messages) - 1; i >= 0; i-- {
		m := &short.Messages[i]
		if m.Role == "assistant" {
			fresh = false
		}
		if text := contentOf(*m); m.Role == "tool" && !fresh && len(text) > 200 {
			*m = withContent(*m, text[:200]+"...")
		}
	}
	return chatMLTemplate(&short)
}

// trimmed: the space around the last message's content is kept, that of older ones is not.
func trimmed(c *vocab.Chat) string {
	cut := *c
	cut.Messages = append([]vocab.Message(nil), c.Messages...)
	for i := range cut.Messages[:max(0, len(cut.Messages)-1)] {
		cut.Messages[i] = withContent(cut.Messages[i], strings.TrimSpace(contentOf(cut.Messages[i])))
	}
	return chatMLTemplate(&cut)
}
