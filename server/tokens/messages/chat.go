package messages

import (
	"bytes"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/convert"
)

// Chat returns the chat request that vLLM makes of a streamed message, whose prompt was read from body. It returns false where the translation depends
// on the engine's settings or is not exact for another reason. The result shares no memory with body. Chat is safe for concurrent use.
func Chat(p *prompt.Prompt, body []byte) ([]byte, bool) {
	out := append(make([]byte, 0, len(body)+1024), `{"stream":true,"stream_options":{"include_usage":true}`...)
	all, limited, stops := true, false, false
	err := rawjson.Members(body, func(name string, v []byte) bool {
		as, ok := member(name, v)
		all = all && ok
		limited = limited || name == "max_tokens" && len(v) > 0 && v[0] >= '1' && v[0] <= '9'
		stops = stops || as == "stop"
		if as != "" {
			out = append(append(append(append(out, ",\""...), as...), "\":"...), v...)
		}
		return all
	})
	if err != nil || !all || !limited || !plainMessages(p.Messages) {
		return nil, false
	}
	in := *p
	in.Body = body
	chat, ok := convert.Chat(&in)
	if !ok {
		return nil, false
	}
	out = append(append(append(out, `,"messages":[`...), bytes.Join(chat.Messages, []byte{','})...), ']')
	chooses := false
	for _, f := range chat.Fields {
		chooses = chooses || f.Name == "tools" || f.Name == "tool_choice"
		out = append(append(append(append(out, ",\""...), f.Name...), "\":"...), f.Value...)
	}
	// vLLM sets both, and chat's own defaults are others.
	if !chooses {
		out = append(out, `,"tool_choice":null`...)
	}
	if !stops {
		out = append(out, `,"stop":null`...)
	}
	choice := rawjson.Member(body, "tool_choice")
	if once := rawjson.Member(choice, "disable_parallel_tool_use"); string(once) == "true" {
		out = append(out, `,"parallel_tool_calls":false`...)
	} else if !rawjson.IsNull(once) && string(once) != "false" {
		return nil, false
	}
	return append(out, '}'), true
}

// member says what becomes of a top-level member: the name that chat has for it, or nothing. It is false for a value that is not translated.
func member(name string, v []byte) (as string, ok bool) {
	switch name {
	case "model", "max_tokens", "temperature", "top_p", "top_k", "cache_salt":
		return name, true
	case "stop_sequences":
		return "stop", true
	case "messages", "system", "tool_choice", "chat_template_kwargs": // see convert
		return "", true
	case "tools":
		return "", rawjson.IsNull(v) || plainTools(v)
	case "output_config":
		return "", rawjson.IsNull(rawjson.Member(v, "format"))
	case "thinking": // a budget counts tokens of the answer, and how thinking is turned off is the engine's setting
		return "", rawjson.IsNull(v) || string(rawjson.Member(v, "type")) == `"adaptive"`
	case "stream", "metadata", "service_tier", "context_management", "betas", "container", "mcp_servers", "inference_geo", "session_id", "expected_output_tokens":
		return "", true // an engine reads none of them
	case "priority":
		return "", true // nor this one, of a message
	}
	return "", rawjson.IsNull(v)
}

// plainMessages reports whether there are only messages of users and assistants: where a template puts another one is its own matter.
func plainMessages(list [][]byte) bool {
	for _, m := range list {
		switch string(rawjson.Member(m, "role")) {
		case `"user"`, `"assistant"`:
		default:
			return false
		}
		content := rawjson.Member(m, "content")
		if len(content) == 0 {
			return false
		}
		if content[0] != '[' {
			continue
		}
		ok := true
		err := rawjson.Elements(content, func(block []byte) bool {
			if input := rawjson.Member(block, "input"); string(rawjson.Member(block, "type")) == `"tool_use"` && !rawjson.IsNull(input) {
				ok = ok && input[0] == '{'
			}
			return ok
		})
		if !ok || err != nil {
			return false
		}
	}
	return len(list) > 0
}

// plainTools reports whether a list has tools without settings that chat's form here lacks.
func plainTools(list []byte) bool {
	n, ok := 0, true
	err := rawjson.Elements(list, func(tool []byte) bool {
		n++
		ok = ok && rawjson.IsNull(rawjson.Member(tool, "strict")) && rawjson.IsNull(rawjson.Member(tool, "defer_loading"))
		return ok
	})
	return err == nil && ok && n > 0
}

// Serves reports whether an engine of this version answers messages as Stream does. Of a version that was not compared, nothing is assumed.
func Serves(version string) bool {
	return version == "0.33" || len(version) > 5 && version[:5] == "0.33."
}

// faultType is Anthropic's name for an error of a status.
func faultType(status int) string {
	switch status {
	case 400:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}
