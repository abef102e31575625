package openai

import (
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// continued says what a member of a body is to the rest of an answer: known, and asked for again with it.
func continued(name string) (known, again bool) {
	switch name {
	case "stream_options", "temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids", "stop_token_ids",
		"ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "stream_interval",
		"user", "session_id", "priority", "cache_salt", "request_id",
		"repetition_penalty": // counts prompt and answer alike
		return true, true
	case "model", "stream", "max_tokens", "max_completion_tokens", "prompt", "messages",
		// the router looks for the stop strings of the rest, and counts the tokens until they matter: see Stops
		"stop", "min_tokens",
		// these make the prompt, which is known by its ids
		"add_special_tokens", "truncate_prompt_tokens", "truncation_side", "add_generation_prompt", "continue_final_message",
		"chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "mm_processor_kwargs", "media_io_kwargs",
		// and these change nothing in an engine
		"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "length_penalty",
		"return_prompt_text", "expected_output_tokens", "nvext":
		return true, false
	}
	return false, false
}

// continued says what a member is to the rest of this request's answer.
func (r *Request) continued(name string) (known, again bool) {
	switch {
	case name == "logprobs" && r.Logprobs():
		return true, true
	case name == "seed" && !r.greedy():
		return r.seeded(), false // see Seed
	}
	return continued(name)
}

// neutral reports whether a member of another name has a value that asks for nothing.
func neutral(name string, value []byte) bool {
	switch string(value) {
	case "null", "false", "[]", `""`:
		return name != "include_reasoning" || string(value) == "null"
	case "0", "0.0":
		return name == "presence_penalty" || name == "frequency_penalty" || name == "top_logprobs"
	case "1":
		return name == "n" || name == "best_of"
	case "true":
		return name == "include_reasoning"
	case `"none"`, `"auto"`:
		return name == "tool_choice" // there are no tools: those would be a member with a value
	case `{"type":"text"}`, `{"type": "text"}`:
		return name == "response_format"
	}
	return false
}

// Way is how another engine can continue a streamed answer exactly.
type Way int

const (
	// WayNone: it cannot.
	WayNone Way = iota
	// WayText: by a completion of the prompt and the answer so far.
	WayText
	// WayTokens: by the routes that take and return token ids, with an engine's parser that takes the answer apart.
	WayTokens
	// WayRepeat: by the same request, whose answer is the same since nothing is drawn, or with the client's seed.
	WayRepeat
)

// Way returns how the rest of the streamed answer can be asked for: see docs/adr/014. A request with members that are not known has none.
func (r *Request) Way() Way {
	switch {
	case r.Resumable():
		return WayText
	case r.Prompt.API == prompt.APIChat && r.continues(r.parsed):
		if stops, _ := r.Stops(); len(stops.Strings) == 0 { // an engine's parser does not take stop strings
			return WayTokens
		}
	}
	if r.Repeatable() {
		return WayRepeat
	}
	return WayNone
}

// Repeatable reports whether another engine may be expected to answer the request in the same way, whatever else it asks for.
func (r *Request) Repeatable() bool {
	if !r.Stream || r.Truncated || r.end == 0 || r.N > maxRepeated || r.KVTransfer || !r.greedy() && !r.seeded() {
		return false
	}
	switch r.Prompt.API.String() + "/" + r.Prompt.Kind.String() {
	case "chat/chat", "completions/text", "completions/ids":
	default:
		return false
	}
	for _, name := range []string{"return_token_ids", "prompt_logprobs", "use_beam_search", "vllm_xargs", "kv_transfer_params"} {
		if r.lastMember(name) >= 0 && !idle(r.Raw(name)) {
			return false
		}
	}
	return r.Prompt.API == prompt.APIChat || r.lastMember("logprobs") < 0 || idle(r.Raw("logprobs")) && string(r.Raw("logprobs")) != "0"
}

// maxRepeated bounds the choices of an answer that is written again.
const maxRepeated = 16

// Resumable reports whether the rest of the streamed answer, asked for as a completion with the beginning as part of
// the prompt, is what it would have been.
func (r *Request) Resumable() bool { return r.continues(r.without) }

// parsed reports whether a member that is no part of a plain continuation has a part in one by token ids: tools that may be called, but need not.
func (r *Request) parsed(name string) bool {
	return name == "tools" && (r.lastMember("tool_choice") < 0 || neutral("tool_choice", r.Raw("tool_choice"))) || r.without(name)
}

// continues reports whether each member is known to a continuation, or has no part in it. Members that are not known are not.
func (r *Request) continues(apart func(name string) bool) bool {
	if !r.Stream || r.Truncated || r.end == 0 || r.N != 1 || r.Prompt.HasMedia || r.KVTransfer {
		return false
	}
	switch r.Prompt.API.String() + "/" + r.Prompt.Kind.String() {
	case "chat/chat", "completions/text", "completions/ids":
	default:
		return false
	}
	for i, m := range r.members {
		if known, _ := r.continued(m.name); !known && r.lastMember(m.name) == i && !neutral(m.name, r.Raw(m.name)) && !apart(m.name) {
			return false
		}
	}
	_, ok := r.Stops()
	return ok
}

// without reports whether a member has no part in the answer because of another member's value: a seed where nothing is drawn,
// and tools that may not be called, which are in the prompt alone.
func (r *Request) without(name string) bool {
	switch name {
	case "seed":
		return r.greedy()
	case "tools":
		return string(r.Raw("tool_choice")) == `"none"`
	}
	return false
}

// greedy reports whether the request asks for the most probable token each time: then nothing is drawn.
func (r *Request) greedy() bool {
	switch string(r.Raw("temperature")) {
	case "0", "0.0":
		return true
	}
	return false
}

// seeded reports whether the request has a seed that another one can be made of.
func (r *Request) seeded() bool {
	_, err := strconv.ParseInt(string(r.Raw("seed")), 10, 64)
	return err == nil
}

// Seed is the seed of a continuation behind so many tokens of the answer: not the client's, whose random numbers chose these tokens
// already, but the same whenever that many came before. It is false where nothing is drawn or the client gave none.
func (r *Request) Seed(answer int) (int64, bool) {
	seed, err := strconv.ParseInt(string(r.Raw("seed")), 10, 64)
	if err != nil || r.greedy() {
		return 0, false
	}
	next := int64((uint64(seed) + uint64(answer)*0x9e3779b97f4a7c15) >> 1)
	switch {
	case answer == 0:
		return seed, true
	case next == seed:
		next++
	}
	return next, true
}

// AnswerLimit is how many tokens the engine may write for the client; 0: as many as fit the model's context.
func (r *Request) AnswerLimit() int {
	if r.MaxTokens == 0 && r.Prompt.API == prompt.APICompletions {
		return defaultAnswer
	}
	return r.MaxTokens
}

// defaultAnswer is max_tokens of /v1/completions when a client gives none.
const defaultAnswer = 16

// IDsEdit asks an engine for the token ids of prompt and answer.
func IDsEdit() Edit { return Edit{Name: "return_token_ids", Value: []byte("true")} }

// Rest is what an engine is asked for that continues an answer.
type Rest struct {
	// Model is its name at the engine.
	Model string
	// IDs are those of the prompt and of the answer so far.
	IDs []uint32
	// Answer is how many of them are of the answer.
	Answer int
	// Limit is how many tokens may follow, Least how many must.
	Limit, Least int
	// WithIDs asks for the ids of what follows.
	WithIDs bool
}

// Continuation is the body of a completion that continues an answer as the request asked for it. Only a request that is Resumable
// has one.
func (r *Request) Continuation(rest Rest) []byte {
	body := make([]byte, 0, 7*len(rest.IDs)+256)
	body = append(rawjson.AppendString(append(body, `{"model":`...), rest.Model), `,"stream":true`...)
	if rest.WithIDs {
		body = append(body, `,"return_token_ids":true`...)
	}
	body = append(strconv.AppendInt(append(body, `,"max_tokens":`...), int64(rest.Limit), 10), `,"prompt":`...)
	body = rawjson.AppendUint32s(body, rest.IDs)
	if seed, ok := r.Seed(rest.Answer); ok {
		body = strconv.AppendInt(append(body, `,"seed":`...), seed, 10)
	}
	if rest.Least > 0 {
		body = strconv.AppendInt(append(body, `,"min_tokens":`...), int64(rest.Least), 10)
	}
	for i, m := range r.members {
		if _, again := r.continued(m.name); again && r.lastMember(m.name) == i && !overruled(r.imposed, -1, m.name) {
			body = append(rawjson.AppendString(append(body, ','), m.name), ':')
			body = append(body, r.Body[m.start:m.valueEnd]...)
		}
	}
	for _, e := range r.imposed {
		body = append(rawjson.AppendString(append(body, ','), e.Name), ':')
		body = append(body, e.Value...)
	}
	return append(body, '}')
}

// Continued is a piece of an answer that another engine writes on, in the words of the client's stream.
type Continued struct {
	// API is the client's, Head what its events begin with (Chunk.Head).
	API  prompt.API
	Head []byte
	// PromptTokens and OutputTokens are the whole request's so far.
	PromptTokens, OutputTokens int
}

// Event appends the JSON of the event that says for the client what c says.
func (d *Continued) Event(dst []byte, c *Chunk) []byte {
	dst = append(dst, d.Head...)
	if c.Choices == 0 {
		dst = append(dst, `"choices":[]`...)
	} else {
		dst = append(d.choice(append(dst, `"choices":[`...), c), ']')
	}
	if c.Usage != nil {
		dst = d.usage(append(dst, `,"usage":`...), c)
	}
	if c.Fingerprint != nil {
		dst = append(append(dst, `,"system_fingerprint":`...), c.Fingerprint...)
	}
	return append(dst, '}')
}

func (d *Continued) choice(dst []byte, c *Chunk) []byte {
	text := c.Text
	if text == nil {
		text = []byte(`""`)
	}
	if d.API == prompt.APIChat {
		if c.Delta != nil {
			dst = append(append(dst, `{"index":0,"delta":`...), c.Delta...)
		} else {
			dst = append(append(append(dst, `{"index":0,"delta":{"content":`...), text...), '}')
		}
		dst = append(dst, `,"logprobs":null,"finish_reason":`...)
		if dst = orNull(dst, c.Finish); c.Finish != nil {
			dst = orNull(append(dst, `,"stop_reason":`...), c.Stop)
		}
		return append(dst, `,"token_ids":null}`...)
	}
	dst = orNull(append(append(append(dst, `{"index":0,"text":`...), text...), `,"logprobs":`...), c.Logprobs)
	dst = append(dst, `,"finish_reason":`...)
	dst = orNull(append(orNull(dst, c.Finish), `,"stop_reason":`...), c.Stop)
	return append(dst, `,"prompt_token_ids":null,"token_ids":null}`...)
}

// Usage appends the JSON of the event that ends a stream with its usage.
func (d *Continued) Usage(dst []byte) []byte {
	return d.Event(dst, &Chunk{Usage: []byte(`{}`)})
}

func (d *Continued) usage(dst []byte, c *Chunk) []byte {
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), int64(d.PromptTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), int64(d.PromptTokens+d.OutputTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), int64(d.OutputTokens), 10)
	if n := c.cachedTokens(); n >= 0 {
		dst = strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), int64(min(n, d.PromptTokens)), 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func orNull(dst, raw []byte) []byte {
	if raw == nil {
		return append(dst, "null"...)
	}
	return append(dst, raw...)
}
