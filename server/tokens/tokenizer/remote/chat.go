package remote

import (
	"bytes"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// chatBody maps a chat request to the chat form of /tokenize so that its answer has the ids
// that the generation path of the same replica would use.
func (j *Job) chatBody(e *endpoint) ([]byte, error) {
	p := j.Prompt
	n := 256
	for _, m := range p.Messages {
		n += len(m) + 1
	}
	b := append(make([]byte, 0, n), `{"model":`...)
	b = rawjson.AppendString(b, j.Model)
	b = append(b, `,"messages":[`...)
	for i, m := range p.Messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, renameReasoning(m, e.vers)...)
	}
	b = append(b, ']')
	continued := p.Field("continue_final_message")
	b = appendField(b, "continue_final_message", continued)
	generation := p.Field("add_generation_prompt")
	if rawjson.IsNull(generation) && string(continued) == "true" {
		// /tokenize's own default of true would contradict continue_final_message
		generation = []byte("false")
	}
	b = appendField(b, "add_generation_prompt", generation)
	for _, name := range []string{"add_special_tokens", "chat_template", "mm_processor_kwargs", "media_io_kwargs"} {
		b = appendField(b, name, p.Field(name))
	}
	if !j.dropsTools(e.vers) {
		b = appendField(b, "tools", p.Field("tools"))
	}
	kwargs, err := j.templateKwargs(e.vers)
	if err != nil {
		return nil, err
	}
	b = appendField(b, "chat_template_kwargs", kwargs)
	return append(b, '}'), nil
}

// dropsTools reports whether the engine leaves the tools out of the template.
func (j *Job) dropsTools(v version) bool {
	if string(j.Prompt.Field("tool_choice")) != `"none"` {
		return false
	}
	return j.DropToolsOnNone || v.before(0, 10)
}

// templateKwargs merges the arguments of the template: the engine's defaults where /tokenize does
// not apply them itself, the request's kwargs, and the explicit fields that /tokenize lacks.
func (j *Job) templateKwargs(v version) ([]byte, error) {
	p := j.Prompt
	var set kwargs
	if len(j.TemplateDefaults) > 0 && v.atLeast(0, 14) && v.before(0, 18) {
		if err := set.merge(j.TemplateDefaults); err != nil {
			return nil, &Fault{Kind: KindUnmappable, Cause: err}
		}
	}
	request := p.Field("chat_template_kwargs")
	if !rawjson.IsNull(request) {
		if err := set.merge(request); err != nil {
			// not an object: the engine refuses it, and /tokenize with the same words
			return request, nil
		}
	}
	if docs := p.Field("documents"); !rawjson.IsNull(docs) {
		set.put("documents", docs)
	}
	effort := p.Field("reasoning_effort")
	if !rawjson.IsNull(effort) && !v.before(0, 14) {
		if string(effort) != `"auto"` {
			set.put("reasoning_effort", effort)
		}
		if !v.before(0, 23) && rawjson.Member(request, "enable_thinking") == nil {
			thinking := []byte("true")
			if string(effort) == `"none"` {
				thinking = []byte("false")
			}
			set.put("enable_thinking", thinking)
		}
	}
	return set.json(), nil
}

// kwargs is a JSON object under construction; a later put of a name wins.
type kwargs struct{ members []prompt.Field }

func (k *kwargs) put(name string, value []byte) {
	for i := range k.members {
		if k.members[i].Name == name {
			k.members[i].Value = value
			return
		}
	}
	k.members = append(k.members, prompt.Field{Name: name, Value: value})
}

func (k *kwargs) merge(object []byte) error {
	return rawjson.Members(object, func(key string, value []byte) bool {
		k.put(key, value)
		return true
	})
}

func (k *kwargs) json() []byte {
	if len(k.members) == 0 {
		return nil
	}
	b := []byte{'{'}
	for i, m := range k.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, m.Name)
		b = append(b, ':')
		b = append(b, m.Value...)
	}
	return append(b, '}')
}

// renameReasoning does the same as the generation path before the template sees a message:
// reasoning_content becomes reasoning.
func renameReasoning(message []byte, v version) []byte {
	const old = "reasoning_content"
	if v.before(0, 12) || !bytes.Contains(message, []byte(old)) {
		return message
	}
	if rawjson.Member(message, old) == nil || rawjson.Member(message, "reasoning") != nil {
		return message
	}
	var set kwargs
	err := rawjson.Members(message, func(key string, value []byte) bool {
		if key == old {
			key = "reasoning"
		}
		set.put(key, value)
		return true
	})
	if err != nil {
		return message
	}
	return set.json()
}
