package openai

import (
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Edit sets or removes one top-level member of a body.
type Edit struct {
	// Name of the member.
	Name string
	// Value is its new raw JSON; nil removes the member.
	Value []byte
}

// splice is one replacement of body[from:to].
type splice struct {
	from, to int
	with     []byte
}

// Impose has every body that is made of the request from now on carry the edits, in addition to any others.
func (r *Request) Impose(edits ...Edit) { r.imposed = append(r.imposed, edits...) }

// Edit returns the body with the edits made; all other bytes are as the client sent them.
// The member that counts (the last of its name) is replaced; one that is missing is added
// at the end. Removing takes every member of the name. A truncated body is returned as it is.
func (r *Request) Edit(edits ...Edit) []byte {
	if len(r.imposed) > 0 {
		edits = append(slices.Clip(edits), r.imposed...)
	}
	if r.Truncated || r.end == 0 || len(edits) == 0 {
		return r.Body
	}
	var splices []splice
	var added []byte
	for i, e := range edits {
		if e.Value == nil || overruled(edits, i, e.Name) {
			continue
		}
		if m := r.lastMember(e.Name); m >= 0 {
			splices = append(splices, splice{r.members[m].start, r.members[m].valueEnd, e.Value})
			continue
		}
		added = append(rawjson.AppendString(append(added, ','), e.Name), ':')
		added = append(added, e.Value...)
	}
	splices, kept := r.removals(splices, edits)
	if len(added) > 0 {
		if kept == 0 {
			added = added[1:]
		}
		splices = append(splices, splice{r.end, r.end, added})
	}
	return apply(r.Body, splices)
}

// overruled reports whether an edit after the ith has the name: the last one counts.
func overruled(edits []Edit, i int, name string) bool {
	return slices.ContainsFunc(edits[i+1:], func(later Edit) bool { return later.Name == name })
}

// removals cuts out the members to remove, each with the comma that joined it, and counts
// the members that stay.
func (r *Request) removals(splices []splice, edits []Edit) (_ []splice, kept int) {
	for i, m := range r.members {
		e := slices.IndexFunc(edits, func(e Edit) bool { return e.Value == nil && e.Name == m.name })
		switch {
		case e < 0 || overruled(edits, e, m.name):
			kept++
		case kept > 0: // with everything since the member before it: ", name: value"
			splices = append(splices, splice{from: r.members[i-1].valueEnd, to: m.valueEnd})
		case i+1 < len(r.members): // with everything up to the member after it
			splices = append(splices, splice{from: m.key, to: r.members[i+1].key})
		default:
			splices = append(splices, splice{from: m.key, to: m.valueEnd})
		}
	}
	return splices, kept
}

// apply makes the replacements in one copy of body.
func apply(body []byte, splices []splice) []byte {
	if len(splices) == 0 {
		return body
	}
	slices.SortFunc(splices, func(a, b splice) int { return a.from - b.from })
	size := len(body)
	for _, s := range splices {
		size += len(s.with) - (s.to - s.from)
	}
	out := make([]byte, 0, size)
	at := 0
	for _, s := range splices {
		out = append(append(out, body[at:s.from]...), s.with...)
		at = s.to
	}
	return append(out, body[at:]...)
}

// WithModel returns the body with the model's name replaced.
func (r *Request) WithModel(name string) []byte {
	if name == r.Model {
		return r.Edit()
	}
	return r.Edit(ModelEdit(name))
}

// ModelEdit names the model that the engine knows.
func ModelEdit(name string) Edit {
	return Edit{Name: "model", Value: rawjson.AppendString(nil, name)}
}

// PromptIDsEdit hands token ids to the engine, so that it does not tokenize again: as the
// prompt of a completion, and for chat as kv_transfer_params.prompt_token_ids (vLLM's Python
// front end from 0.27 or 0.28). It is false when the body's shape leaves no place for them:
// a batch, media (ids alone do not hold an image), or another route.
func (r *Request) PromptIDsEdit(ids []uint32) (Edit, bool) {
	if len(ids) == 0 || r.Prompt.HasMedia {
		return Edit{}, false
	}
	switch r.Prompt.API.String() + "/" + r.Prompt.Kind.String() {
	case "completions/text", "completions/ids":
		return Edit{Name: "prompt", Value: rawjson.AppendUint32s(nil, ids)}, true
	case "chat/chat", "messages/chat":
		return r.transferEdit(ids)
	}
	return Edit{}, false
}

// transferEdit puts the ids last into kv_transfer_params, after anything that the client put there.
func (r *Request) transferEdit(ids []uint32) (Edit, bool) {
	const name = "kv_transfer_params"
	old := r.Raw(name)
	if len(old) == 0 || string(old) == "null" {
		value := append([]byte(`{"prompt_token_ids":`), rawjson.AppendUint32s(nil, ids)...)
		return Edit{Name: name, Value: append(value, '}')}, true
	}
	if old[0] != '{' {
		return Edit{}, false
	}
	value := make([]byte, 0, len(old)+len(ids)*7+32)
	value = append(value, old[:len(old)-1]...)
	if strings.TrimSpace(string(old[1:len(old)-1])) != "" {
		value = append(value, ',')
	}
	value = rawjson.AppendUint32s(append(value, `"prompt_token_ids":`...), ids)
	return Edit{Name: name, Value: append(value, '}')}, true
}
