package enginesim

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// chatRequest is what of /v1/chat/completions changes the answer.
type chatRequest struct {
	sampling
	Messages            []vocab.Message           `json:"messages"`
	Tools               []jsontext.Value          `json:"tools"`
	ToolChoice          jsontext.Value            `json:"tool_choice"`
	AddGenerationPrompt *bool                     `json:"add_generation_prompt"`
	ContinueFinal       bool                      `json:"continue_final_message"`
	ChatTemplate        *string                   `json:"chat_template"`
	TemplateKwargs      map[string]jsontext.Value `json:"chat_template_kwargs"`
	Documents           jsontext.Value            `json:"documents"`
	ReasoningEffort     jsontext.Value            `json:"reasoning_effort"`
	Logprobs            bool                      `json:"logprobs"`
	TopLogprobs         int                       `json:"top_logprobs"`
	Echo                bool                      `json:"echo"`
}

func (l *life) chat(c *call) {
	var req chatRequest
	if !l.read(c, &req) {
		return
	}
	p, bad := l.chatPrompt(&req)
	if bad == nil {
		bad = l.check(&req.sampling)
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	tool := l.toolCall(&req)
	if tool != nil {
		p.forced = vocab.CallText(tool.name, tool.arguments)
	}
	g := l.start(c, &req.sampling, "chatcmpl-", []promptIDs{p})
	if g == nil {
		return
	}
	ok := false
	defer func() { g.end(ok) }()
	a := &chatAnswer{g: g, req: &req, tool: tool, prompt: p}
	if req.Stream {
		ok = a.stream()
	} else {
		ok = a.whole()
	}
}

// chatPrompt renders the conversation, or takes the ids that came with the request.
func (l *life) chatPrompt(req *chatRequest) (promptIDs, *apiError) {
	if bad := l.known(&req.Model); bad != nil {
		return promptIDs{}, bad
	}
	if req.Messages == nil {
		bad := missingField("messages")
		return promptIDs{}, &bad
	}
	if kv := req.KVTransfer; kv != nil && len(kv.PromptTokenIDs) > 0 && l.features.chatIDs && !l.cfg.Rust {
		return promptIDs{ids: kv.PromptTokenIDs, given: true}, nil
	}
	if req.ChatTemplate != nil {
		return promptIDs{}, refuse("Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with untrusted chat template.", "")
	}
	add := req.AddGenerationPrompt == nil || *req.AddGenerationPrompt
	if req.ContinueFinal && req.AddGenerationPrompt != nil && add {
		return promptIDs{}, refuse("Cannot set both `continue_final_message` and `add_generation_prompt` to True.", "")
	}
	kwargs := map[string]jsontext.Value{}
	for k, v := range req.TemplateKwargs {
		kwargs[k] = v
	}
	for k, v := range map[string]jsontext.Value{"documents": req.Documents, "reasoning_effort": req.ReasoningEffort} {
		if len(v) > 0 && string(v) != "null" {
			kwargs[k] = v
		}
	}
	out, err := l.cfg.Vocabulary.Render(vocab.Chat{
		Messages: req.Messages, Tools: req.Tools, GenerationPrompt: add, Continue: req.ContinueFinal, Kwargs: kwargs,
	})
	if err != nil {
		return promptIDs{}, renderError(err)
	}
	if req.AddSpecialTokens != nil && *req.AddSpecialTokens {
		out.IDs = append([]uint32{vocab.Begin}, out.IDs...)
		for i := range out.Items {
			out.Items[i].Offset++
		}
	}
	p := promptIDs{ids: out.IDs}
	for _, it := range out.Items {
		p.items = append(p.items, core.Item(it))
	}
	return p, nil
}

func renderError(err error) *apiError {
	if errors.Is(err, vocab.ErrNoMessages) {
		return refuse("list index out of range", "")
	}
	return refuse(err.Error(), "")
}

// chatAnswer writes one request's answer.
type chatAnswer struct {
	g      *generation
	req    *chatRequest
	tool   *toolCall
	prompt promptIDs
	prefix []byte
}

func (a *chatAnswer) stream() bool {
	g := a.g
	s := newStream(g.l, g.c)
	a.prefix = g.chunkPrefix("chat.completion.chunk")
	started := false
	ok := g.each(func(ch *choice, d delta) bool {
		if !started {
			started = true
			s.head()
			for _, each := range g.choices {
				a.roleChunk(s, each)
			}
		}
		a.chunk(s, ch, d)
		s.send()
		return !s.ended
	})
	if !ok {
		return false
	}
	if o := a.req.StreamOptions; o != nil && o.IncludeUsage {
		b := append(append(s.begin(""), a.prefix...), `],"usage":`...)
		b = g.usage(true).final(b, g.l)
		s.end(append(g.fingerprint(b, true), '}'))
	}
	s.done()
	return true
}

// chunkPrefix is what all chunks of a stream begin with, up to their choices.
func (g *generation) chunkPrefix(object string) []byte {
	b := append([]byte(`{"id":`), quote(nil, g.id)...)
	b = append(b, `,"object":"`+object+`","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	b = append(b, `,"model":`...)
	b = quote(b, g.s.Model)
	return append(b, `,"choices":[`...)
}

// fingerprint names the engine's build, on last chunks only.
func (g *generation) fingerprint(b []byte, last bool) []byte {
	if last && g.l.features.modern {
		b = append(b, `,"system_fingerprint":"vllm-`...)
		b = append(append(b, g.l.features.name...), `-sim"`...)
	}
	return b
}

func (a *chatAnswer) roleChunk(s *stream, ch *choice) {
	b := append(s.begin(""), a.prefix...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ch.index), 10)
	b = append(b, `,"delta":{"role":"assistant","content":""`...)
	b = a.reasoning(b)
	b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
	b = a.continuous(b, 0)
	if a.g.l.features.returnIDs {
		b = append(b, `,"prompt_token_ids":`...)
		b = idsOrNull(b, a.req.ReturnTokenIDs, a.prompt.ids)
	}
	if a.g.l.features.modern {
		b = append(b, `,"prompt_text":null`...)
	}
	s.end(append(b, '}'))
}

// reasoning writes the field that older versions always send.
func (a *chatAnswer) reasoning(b []byte) []byte {
	if a.g.l.features.modern {
		return b
	}
	return append(b, `,"reasoning_content":null`...)
}

// continuous writes the running usage when it was asked for.
func (a *chatAnswer) continuous(b []byte, made int) []byte {
	o := a.req.StreamOptions
	if o == nil || !o.IncludeUsage || !o.Continuous {
		return b
	}
	u := usage{prompt: a.g.promptTokens, completion: made}
	return u.running(append(b, `,"usage":`...), a.g.l)
}

func (a *chatAnswer) chunk(s *stream, ch *choice, d delta) {
	reason := ch.finish
	if a.tool != nil && ch.finish == "stop" {
		reason = "tool_calls"
	}
	inner, skip := a.delta(ch, d)
	if skip && !d.done {
		return
	}
	b := append(s.begin(""), a.prefix...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ch.index), 10)
	b = append(b, `,"delta":{`...)
	b = append(b, inner...)
	b = append(b, `},"logprobs":`...)
	b = a.logprobs(b, d.ids)
	b = append(b, `,"finish_reason":`...)
	b = reasonOrNull(b, reason)
	if d.done {
		b = appendAny(append(b, `,"stop_reason":`...), ch.stop)
	}
	if a.g.l.features.returnIDs {
		b = append(b, `,"token_ids":`...)
		b = idsOrNull(b, a.req.ReturnTokenIDs, d.ids)
	}
	b = append(b, `}]`...)
	b = a.continuous(b, len(ch.ids))
	s.end(append(a.g.fingerprint(b, d.done), '}'))
}

// delta writes what is inside a chunk's delta; skip: there is nothing to tell.
func (a *chatAnswer) delta(ch *choice, d delta) (inner []byte, skip bool) {
	if a.tool != nil {
		inner = a.tool.delta(ch, d)
		return inner, len(inner) == 0
	}
	inner = quote(append(inner, `"content":`...), d.text)
	return a.reasoning(inner), false
}

func (a *chatAnswer) logprobs(b []byte, ids []uint32) []byte {
	if !a.req.Logprobs {
		return append(b, "null"...)
	}
	b = append(b, `{"content":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendChatLogprob(b, id, 0)
		b = append(b, `,"top_logprobs":[`...)
		for k := range a.req.TopLogprobs {
			if k > 0 {
				b = append(b, ',')
			}
			b = append(appendChatLogprob(b, rival(id, k), k), '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, `]}`...)
}

// whole answers without a stream.
func (a *chatAnswer) whole() bool {
	g := a.g
	if !g.each(func(*choice, delta) bool { return true }) {
		return false
	}
	b := append([]byte(`{"id":`), quote(nil, g.id)...)
	b = append(b, `,"object":"chat.completion","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	b = append(b, `,"model":`...)
	b = quote(b, g.s.Model)
	b = append(b, `,"choices":[`...)
	for i, ch := range g.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.wholeChoice(b, ch)
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":`...)
	b = g.wholeFingerprint(b)
	b = append(b, `,"usage":`...)
	b = g.usage(true).whole(b, g.l)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
	b = idsOrNull(b, a.req.ReturnTokenIDs && g.l.features.returnIDs, a.prompt.ids)
	if g.l.features.modern {
		b = append(b, `,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
	} else {
		b = append(b, `,"kv_transfer_params":null}`...)
	}
	g.c.send(http.StatusOK, "application/json", b)
	return true
}

func (g *generation) wholeFingerprint(b []byte) []byte {
	if !g.l.features.modern {
		return append(b, "null"...)
	}
	return quote(b, "vllm-"+g.l.features.name+"-sim")
}

func (a *chatAnswer) wholeChoice(b []byte, ch *choice) []byte {
	modern := a.g.l.features.modern
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ch.index), 10)
	b = append(b, `,"message":{"role":"assistant","content":`...)
	called := a.tool != nil && ch.finish == "stop"
	if called {
		b = append(b, "null"...)
	} else {
		b = quote(b, ch.text)
	}
	b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	switch {
	case called:
		calls, err := json.Marshal(a.tool.calls(ch))
		if err != nil {
			panic(err) // our own types always marshal
		}
		b = append(append(b, `,"tool_calls":`...), calls...)
	case !modern:
		b = append(b, `,"tool_calls":[]`...)
	}
	b = append(b, `,"reasoning":null`...)
	b = a.reasoning(b)
	b = append(b, `},"logprobs":`...)
	b = a.logprobs(b, ch.ids)
	b = append(b, `,"finish_reason":`...)
	if called {
		b = append(b, `"tool_calls"`...)
	} else {
		b = reasonOrNull(b, ch.finish)
	}
	b = appendAny(append(b, `,"stop_reason":`...), ch.stop)
	b = append(b, `,"token_ids":`...)
	b = idsOrNull(b, a.req.ReturnTokenIDs && a.g.l.features.returnIDs, ch.ids)
	if modern {
		b = append(b, `,"routed_experts":null`...)
	}
	return append(b, '}')
}
