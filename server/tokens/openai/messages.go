package openai

// message reads one message and reports whether any part of it is not text.
func (r *reader) message() (media, ok bool) {
	ok = r.s.Members(func(name []byte, _ int) bool {
		if string(name) == "content" {
			m, ok := r.content()
			media = m
			return ok
		}
		return r.s.Skip()
	})
	return media, ok
}

// content reads a message's content: a string, or a list of parts.
func (r *reader) content() (media, ok bool) {
	if r.s.Space() != '[' {
		return false, r.s.Skip()
	}
	ok = r.s.Elements(func(int) bool {
		if r.s.Space() != '{' {
			return r.s.Skip()
		}
		m, ok := r.part()
		media = media || m
		return ok
	})
	return media, ok
}

// part reads one content part. A part is media when its type is none of the text types, or,
// without a type, when it has a member that only media have. A tool result may hold parts.
func (r *reader) part() (media, ok bool) {
	typed, textual, hint, nested := false, false, false, false
	ok = r.s.Members(func(name []byte, _ int) bool {
		switch string(name) {
		case "type":
			if r.s.Space() != '"' {
				return r.s.Skip()
			}
			t, ok := r.s.Text()
			typed, textual = true, textPart(t.Bytes())
			return ok
		case "content":
			m, ok := r.content()
			nested = m
			return ok
		case "image_url", "image", "input_image", "image_embeds", "image_pil", "audio_url", "audio", "input_audio",
			"audio_embeds", "video_url", "video", "file", "source":
			hint = true
		}
		return r.s.Skip()
	})
	return nested || typed && !textual || !typed && hint, ok
}

// textPart reports whether a part of this type is read by the chat template as text.
func textPart(kind []byte) bool {
	switch string(kind) {
	case "text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning", "summary_text",
		"reasoning_text", "tool_use", "tool_result", "tool_reference", "tool_call", "server_tool_use", "search_result":
		return true
	}
	return false
}
