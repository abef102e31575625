package openai

import (
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// The members of a body that two engines must not share: more than one prompt or answer, answers that show the prompt, and
// answers that are forced into a form which one token cannot have.
var notSplit = [...]string{"echo", "prompt_logprobs", "best_of", "use_beam_search", "suffix", "prompt_embeds"}

// Splittable reports whether one engine can compute the request's prompt and another one write its answer. vLLM passes on the cache of
// one prompt for one answer.
func Splittable(r *Request) bool {
	if r.Truncated || r.end == 0 || r.N != 1 || r.KVTransfer || r.MaxTokens == 1 || r.Prompt.HasMedia {
		return false
	}
	switch {
	case r.Route == RouteChat && r.Prompt.Kind == prompt.KindChat:
	case r.Route == RouteCompletions && (r.Prompt.Kind == prompt.KindText || r.Prompt.Kind == prompt.KindIDs):
	default:
		return false
	}
	for _, name := range notSplit {
		if value := r.Raw(name); value != nil && !neutral(name, value) && !isUnset(value) {
			return false
		}
	}
	switch choice := r.Raw("tool_choice"); string(choice) {
	case "", "null", `"auto"`, `"none"`:
		return true
	}
	return false // a call that is required is no call after one token
}

// isUnset reports whether a value asks for nothing.
func isUnset(value []byte) bool {
	switch string(value) {
	case "null", "false", `""`:
		return true
	}
	return false
}

// Legs makes the two bodies of a split request. Both name the model and the prompt in the same way: an engine does not check that a
// cache belongs to its prompt.
type Legs struct {
	Request *Request
	// Model is its name at the engines.
	Model string
	// IDs are handed over instead of the text; nil sends the text.
	IDs []uint32
	// Transfer is the name of the transfer where engines find it by one that no other has (Mooncake); empty for none.
	Transfer string
}

// asSource are the parameters of a request whose prompt is computed for another engine. transfer names the move; empty for none.
func asSource(transfer string) []byte {
	b := []byte(`{"do_remote_decode":true,"do_remote_prefill":false`)
	if transfer != "" {
		b = rawjson.AppendString(append(b, `,"transfer_id":`...), transfer)
	}
	return append(b, '}')
}

// MooncakeParams are the parameters of a request whose prompt another engine has computed, for Mooncake: the name of the transfer, the other engine's
// bootstrap server, and the id of its process.
func MooncakeParams(transfer, bootstrap, engine string) []byte {
	b := append([]byte(`{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":`), rawjson.AppendString(nil, transfer)...)
	b = rawjson.AppendString(append(b, `,"remote_bootstrap_addr":`...), bootstrap)
	b = rawjson.AppendString(append(b, `,"remote_engine_id":`...), engine)
	return append(b, '}')
}

// MooncakeEngine reads the id of a rank's process from a bootstrap server's answer; empty where it has none.
func MooncakeEngine(answer []byte, rank int) string {
	if !isJSON(answer) {
		return ""
	}
	entry := rawjson.Member(answer, strconv.Itoa(rank))
	if len(entry) == 0 || entry[0] != '{' {
		return ""
	}
	id, err := rawjson.Unquote(rawjson.Member(entry, "engine_id"))
	if err != nil || len(id) > mostEngineID {
		return ""
	}
	return id
}

// mostEngineID bounds the id of an engine's process, in bytes.
const mostEngineID = 512

// common are the edits of both legs, but for the transfer.
func (l *Legs) common() []Edit {
	edits := make([]Edit, 0, 16)
	if l.Request.Model != "" {
		edits = append(edits, ModelEdit(l.Model))
	}
	if len(l.IDs) > 0 && l.Request.Route == RouteCompletions {
		edits = append(edits, Edit{Name: "prompt", Value: rawjson.AppendUint32s(nil, l.IDs)})
	}
	return edits
}

// transfer is kv_transfer_params with the ids of a chat.
func (l *Legs) transfer(object []byte) Edit {
	e := Edit{Name: "kv_transfer_params", Value: object}
	if len(l.IDs) == 0 || l.Request.Route != RouteChat {
		return e
	}
	value := make([]byte, 0, len(object)+7*len(l.IDs)+32)
	value = append(value, object[:len(object)-1]...)
	value = rawjson.AppendUint32s(append(value, `,"prompt_token_ids":`...), l.IDs)
	e.Value = append(value, '}')
	return e
}

// Prefill is the body for the engine that computes the prompt. It ends after exactly one token, for its length: an answer that a stop
// string, a stop token or the end of the text ends has no cache to pass on.
func (l *Legs) Prefill() []byte {
	one := []byte("1")
	edits := append(l.common(),
		l.transfer(asSource(l.Transfer)),
		Edit{Name: "max_tokens", Value: one}, Edit{Name: "stream", Value: []byte("false")}, Edit{Name: "ignore_eos", Value: []byte("true")},
		Edit{Name: "stream_options"}, Edit{Name: "stop"}, Edit{Name: "stop_token_ids"}, Edit{Name: "min_tokens"},
		Edit{Name: "return_token_ids"}, Edit{Name: "request_id"})
	if l.Request.Present("max_completion_tokens") {
		edits = append(edits, Edit{Name: "max_completion_tokens", Value: one})
	}
	return l.Request.Edit(edits...)
}

// Decode is the body for the engine that writes the answer: the client's, with the parameters that the other one passed on.
func (l *Legs) Decode(params []byte, more ...Edit) []byte {
	edits := append(append(l.common(), l.transfer(params)), more...)
	if l.Request.Present("request_id") { // it would name two requests of one engine
		edits = append(edits, Edit{Name: "request_id"})
	}
	return l.Request.Edit(edits...)
}

// Prefilled is an engine's report of a prompt that it computed for another one.
type Prefilled struct {
	// Params are its kv_transfer_params, raw; nil when there are none to decode with.
	Params []byte
	// PromptTokens and CachedTokens are its usage; -1 when it is not there.
	PromptTokens, CachedTokens int
	// Mode is its word on the direction of the transfer: pull or push; empty of versions that do not say.
	Mode string
}

// ReadPrefilled reads the answer of the engine that computed the prompt.
func ReadPrefilled(body []byte) Prefilled {
	p := Prefilled{PromptTokens: -1, CachedTokens: -1}
	if params := rawjson.Member(body, "kv_transfer_params"); len(params) > 2 && params[0] == '{' && params[len(params)-1] == '}' &&
		string(rawjson.Member(params, "do_remote_prefill")) == "true" && isJSON(params) {
		p.Params = params
		p.Mode, _ = rawjson.Unquote(rawjson.Member(params, "transfer_mode")) // of any other kind it says nothing
	}
	usage := rawjson.Member(body, "usage")
	if len(usage) == 0 || usage[0] != '{' {
		return p
	}
	p.PromptTokens = count(rawjson.Member(usage, "prompt_tokens"))
	if details := rawjson.Member(usage, "prompt_tokens_details"); len(details) > 0 && details[0] == '{' {
		p.CachedTokens = count(rawjson.Member(details, "cached_tokens"))
	}
	return p
}

// isJSON reports whether a value is JSON to its last byte.
func isJSON(value []byte) bool {
	s := rawjson.Scanner{Data: value}
	return s.Skip() && s.Pos == len(value)
}
