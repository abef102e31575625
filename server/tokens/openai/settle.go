package openai

import "github.com/kvpilot/kvpilot/server/domain/prompt"

// settler decides the fields that depend on several members of a body, once all have been read.
type settler struct{ *reader }

// route decides what a body of unknown route is: messages that hold something make it
// chat, else a prompt that holds something makes it a completion, else an input a response.
func (r settler) route() {
	if r.req.Route != RouteAny {
		return
	}
	switch {
	case r.messages.truthy():
		r.req.Route = RouteChat
	case r.reader.prompt.truthy():
		r.req.Route = RouteCompletions
	case r.input.truthy():
		r.req.Route = RouteResponses
	}
}

// prompt takes the prompt from the member that the route reads it from.
func (r settler) prompt() {
	p := &r.req.Prompt
	var from found
	switch r.req.Route {
	case RouteChat:
		p.API, from = prompt.APIChat, r.messages
	case RouteMessages, RouteCountTokens:
		p.API, from = prompt.APIMessages, r.messages
	case RouteCompletions:
		p.API, from = prompt.APICompletions, r.reader.prompt
	case RouteResponses:
		p.API, from = prompt.APIResponses, r.input
	default:
		return
	}
	p.Kind, p.HasMedia, p.Messages = from.kind, from.media, from.items
	p.IDs, p.Batch = from.ids, from.batch
	if len(from.batch) > 0 {
		p.IDs = from.batch[0]
	}
	if len(from.texts) > 0 {
		p.Text = from.texts[0].Shared()
	}
	if len(from.texts) > 1 {
		p.Texts = make([]string, len(from.texts))
		p.Texts[0] = p.Text
		for i, t := range from.texts[1:] {
			p.Texts[i+1] = t.Shared()
		}
	}
	p.Partial = r.partial
	p.Fields = r.fields()
}

// fields collects the members that may change the prompt's ids, each name once.
func (r settler) fields() []prompt.Field {
	count := 0
	for _, m := range r.req.members {
		if changesIDs(m.name) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	fields := make([]prompt.Field, 0, count)
	for i, m := range r.req.members {
		if changesIDs(m.name) && r.req.lastMember(m.name) == i {
			fields = append(fields, prompt.Field{Name: m.name, Value: r.req.Body[m.start:m.valueEnd:m.valueEnd]})
		}
	}
	return fields
}

// changesIDs names the members that chat templates, tokenizers or renderers read.
func changesIDs(name string) bool {
	switch name {
	case "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls",
		"chat_template", "chat_template_kwargs", "chat_template_content_format",
		"add_generation_prompt", "continue_final_message", "add_special_tokens",
		"documents", "reasoning_effort", "reasoning", "include_reasoning", "enable_thinking", "thinking",
		"mm_processor_kwargs", "media_io_kwargs", "response_format", "structured_outputs",
		"truncate_prompt_tokens", "truncation_side", "truncation",
		"system", "instructions", "text", "echo", "suffix", "prompt_embeds",
		"use_beam_search": // it changes which of the tokenizer's routes take the prompt
		return true
	}
	return false
}
