package openai

import (
	"bytes"
	"fmt"
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

// Continuation is how another engine can continue the streamed answer to a request. It is a value, safe to read from several goroutines.
type Continuation struct {
	req *Request
	draw
}

// Continuation returns how another engine can continue the answer.
func (r *Request) Continuation() Continuation { return Continuation{req: r, draw: drawOf(r)} }

// member says what a member of the request is to the rest of its answer.
func (c Continuation) member(name string) (known, again bool) {
	switch {
	case name == "logprobs" && c.req.Logprobs():
		return true, true
	case name == "seed" && !c.greedy:
		return c.seeded, false // see Seed
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
func (c Continuation) Way() Way {
	switch {
	case c.ByText():
		return WayText
	case c.req.Prompt.API == prompt.APIChat && c.continues(c.parsed):
		if stops, _ := c.req.Stops(); len(stops.Strings) == 0 { // an engine's parser does not take stop strings
			return WayTokens
		}
	}
	if c.Repeats() {
		return WayRepeat
	}
	return WayNone
}

// maxRepeated bounds the choices of an answer that is written again.
const maxRepeated = 16

// Repeats reports whether another engine may be expected to answer the request in the same way, whatever else it asks for.
func (c Continuation) Repeats() bool {
	r := c.req
	if !r.Stream || r.Truncated || r.end == 0 || r.N > maxRepeated || r.KVTransfer || !c.greedy && !c.seeded {
		return false
	}
	if named := c.byName(); !named && !oneText(&r.Prompt) || named && !c.alone() {
		return false
	}
	for _, name := range []string{"return_token_ids", "prompt_logprobs", "use_beam_search", "vllm_xargs", "kv_transfer_params"} {
		if r.lastMember(name) >= 0 && !idle(r.Raw(name)) {
			return false
		}
	}
	return r.Prompt.API != prompt.APICompletions || r.lastMember("logprobs") < 0 || idle(r.Raw("logprobs")) && string(r.Raw("logprobs")) != "0"
}

// byName reports whether the answer's events have names.
func (c Continuation) byName() bool {
	return c.req.Prompt.API == prompt.APIMessages || c.req.Prompt.API == prompt.APIResponses
}

// alone reports whether nothing but the request decides on an answer whose events have names: no response that another engine stores, and no tool
// that the engine itself calls. Log probabilities come by token, and are not compared.
func (c Continuation) alone() bool {
	r := c.req
	for _, name := range []string{"previous_response_id", "background", "enable_response_messages", "mcp_servers", "container"} {
		if r.lastMember(name) >= 0 && !idle(r.Raw(name)) {
			return false
		}
	}
	if bytes.Contains(r.Raw("include"), []byte("logprobs")) {
		return false
	}
	if r.Prompt.API == prompt.APIMessages { // which has no seed
		return c.greedy
	}
	if r.lastMember("tools") < 0 || idle(r.Raw("tools")) {
		return true
	}
	own := true
	s := rawjson.Scanner{Data: r.Raw("tools")}
	return s.Space() == '[' && s.Elements(func(int) bool {
		from := s.Pos
		ok := s.Skip()
		own = own && string(memberOf(s.Data[from:s.Pos], "type")) == `"function"`
		return ok
	}) && own
}

// ResponseIDEdit gives the engine's response a name that its client knows already.
func ResponseIDEdit(id string) Edit {
	return Edit{Name: "request_id", Value: rawjson.AppendString(nil, id)}
}

// ByText reports whether the rest of the streamed answer, asked for as a completion with the beginning as part of
// the prompt, is the same as it would have been.
func (c Continuation) ByText() bool { return c.continues(c.without) }

// continues reports whether each member is known to a continuation, or has no part in it. Members that are not known are not.
func (c Continuation) continues(apart func(name string) bool) bool {
	r := c.req
	if !r.Stream || r.Truncated || r.end == 0 || r.N != 1 || r.Prompt.HasMedia || r.KVTransfer || !oneText(&r.Prompt) {
		return false
	}
	for i, m := range r.members {
		if known, _ := c.member(m.name); !known && r.lastMember(m.name) == i && !neutral(m.name, r.Raw(m.name)) && !apart(m.name) {
			return false
		}
	}
	_, ok := r.Stops()
	return ok
}

// oneText reports whether a prompt is of a kind whose answer is one text for each choice.
func oneText(p *prompt.Prompt) bool {
	switch p.API {
	case prompt.APIChat:
		return p.Kind == prompt.KindChat
	case prompt.APICompletions:
		return p.Kind == prompt.KindText || p.Kind == prompt.KindIDs
	case prompt.APIMessages, prompt.APIResponses, prompt.APIOther:
	}
	return false
}

// parsed reports whether a member that is no part of a plain continuation has a part in one by token ids: tools that may be called, but need not.
func (c Continuation) parsed(name string) bool {
	r := c.req
	return name == "tools" && (r.lastMember("tool_choice") < 0 || neutral("tool_choice", r.Raw("tool_choice"))) || c.without(name)
}

// without reports whether a member has no part in the answer because of another member's value: a seed where nothing is drawn,
// and tools that may not be called, which are in the prompt alone.
func (c Continuation) without(name string) bool {
	switch name {
	case "seed":
		return c.greedy
	case "tools":
		return string(c.req.Raw("tool_choice")) == `"none"`
	}
	return false
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

// Rest is the request to an engine that continues an answer.
type Rest struct {
	// Model is its name at the engine.
	Model string
	// IDs are the ids of the prompt and of the answer so far.
	IDs []uint32
	// Answer is how many of them are of the answer.
	Answer int
	// Limit is how many tokens may follow, Least how many must.
	Limit, Least int
	// WithIDs asks for the ids of the rest.
	WithIDs bool
}

// Body is the body of a completion that continues the answer as the request asked for it. Only an answer that continues ByText has one.
func (c Continuation) Body(rest Rest) []byte {
	r := c.req
	body := make([]byte, 0, 7*len(rest.IDs)+256)
	body = append(rawjson.AppendString(append(body, `{"model":`...), rest.Model), `,"stream":true`...)
	if rest.WithIDs {
		body = append(body, `,"return_token_ids":true`...)
	}
	body = append(strconv.AppendInt(append(body, `,"max_tokens":`...), int64(rest.Limit), 10), `,"prompt":`...)
	body = rawjson.AppendUint32s(body, rest.IDs)
	if seed, ok := c.Seed(rest.Answer); ok {
		body = strconv.AppendInt(append(body, `,"seed":`...), seed, 10)
	}
	if rest.Least > 0 {
		body = strconv.AppendInt(append(body, `,"min_tokens":`...), int64(rest.Least), 10)
	}
	for i, m := range r.members {
		if _, again := c.member(m.name); again && r.lastMember(m.name) == i && !overruled(r.imposed, -1, m.name) {
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
	// API is the client's, Head the beginning of its events (Chunk.Head).
	API  prompt.API
	Head []byte
	// PromptTokens and OutputTokens are the whole request's so far.
	PromptTokens, OutputTokens int
	// Shown is set when the client gets the ids.
	Shown bool
}

// ids are those of a piece as the client gets them.
func (d *Continued) ids(c *Chunk) []byte {
	if !d.Shown {
		return nil
	}
	return c.IDs
}

// Event appends the JSON of the event that repeats c in the client's form.
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
	if c.Nulls.Transfer {
		dst = append(dst, `,"kv_transfer_params":null`...)
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
		dst = orNull(append(dst, `,"token_ids":`...), d.ids(c))
		return c.ended(dst, c.Finish != nil)
	}
	dst = orNull(append(append(append(dst, `{"index":0,"text":`...), text...), `,"logprobs":`...), c.Logprobs)
	dst = append(dst, `,"finish_reason":`...)
	dst = orNull(append(orNull(dst, c.Finish), `,"stop_reason":`...), c.Stop)
	dst = orNull(append(dst, `,"prompt_token_ids":null,"token_ids":`...), d.ids(c))
	return c.ended(dst, true)
}

// ended appends the end of a choice, in which the API may have the versions of weights.
func (c *Chunk) ended(dst []byte, versions bool) []byte {
	if versions && c.Nulls.Versions {
		dst = append(dst, `,"weight_versions":null`...)
	}
	return append(dst, '}')
}

// Stamp is the end of an engine's streams apart from the counts of the answer.
type Stamp struct {
	// Fingerprint is the raw system_fingerprint; nil where there is none.
	Fingerprint []byte
	// Details is set where the usage has details of the prompt, which have the tokens that were Cached.
	Details bool
	Cached  int
}

// Stamp returns the stamp of the event that ends a stream. Its fingerprint shares memory with the event.
func (c *Chunk) Stamp() Stamp {
	n := c.cachedTokens()
	return Stamp{Fingerprint: c.Fingerprint, Details: n >= 0, Cached: max(0, n)}
}

// Usage appends the JSON of the event that ends a stream with its usage.
func (d *Continued) Usage(dst []byte, s *Stamp) []byte {
	usage := []byte(`{}`)
	if s.Details {
		usage = fmt.Appendf(nil, `{"prompt_tokens_details":{"cached_tokens":%d}}`, s.Cached)
	}
	return d.Event(dst, &Chunk{Usage: usage, Fingerprint: s.Fingerprint})
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
