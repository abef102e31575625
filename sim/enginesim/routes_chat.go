package enginesim

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// chatRequest has the fields of /v1/chat/completions that change the answer.
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
	var tool *toolCall
	p.forced, tool = l.forced(&req)
	l.answer(c, &req.sampling, "chatcmpl-", []promptIDs{p}, func(g *generation) bool {
		a := &chatAnswer{g: g, req: &req, tool: tool, prompt: p}
		if req.Stream {
			return a.stream()
		}
		return g.whole("chat.completion", true, a.wholeChoice, a.wholePrompt)
	})
}

// chatPrompt renders the conversation, or takes the ids that came with the request.
func (d *dialect) chatPrompt(req *chatRequest) (promptIDs, *apiError) {
	if bad := d.known(&req.Model); bad != nil {
		return promptIDs{}, bad
	}
	if req.Messages == nil {
		bad := missingField("messages")
		return promptIDs{}, &bad
	}
	if kv := req.KVTransfer; kv != nil && len(kv.PromptTokenIDs) > 0 && d.features.has(chatIDs) && !d.cfg.Rust {
		return promptIDs{ids: kv.PromptTokenIDs, given: true}, nil
	}
	if req.ChatTemplate != nil {
		return promptIDs{}, reject("Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with untrusted chat template.", "")
	}
	add := req.AddGenerationPrompt == nil || *req.AddGenerationPrompt
	if req.ContinueFinal && req.AddGenerationPrompt != nil && add {
		return promptIDs{}, reject("Cannot set both `continue_final_message` and `add_generation_prompt` to True.", "")
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
	out, err := d.cfg.Vocabulary.Render(vocab.Chat{
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
		return reject("list index out of range", "")
	}
	return reject(err.Error(), "")
}

// chatAnswer writes one request's answer.
type chatAnswer struct {
	g      *generation
	req    *chatRequest
	tool   *toolCall
	prompt promptIDs
	prefix text
	// parsers are the parsers of the choices whose answer begins with a thought.
	parsers map[int]*parser
}

func (a *chatAnswer) stream() bool {
	a.prefix = a.g.chunkPrefix("chat.completion.chunk")
	s, ok := a.g.stream(func(s *stream) {
		for _, ch := range a.g.choices {
			a.roleChunk(s, ch)
		}
	}, a.chunk)
	return ok && a.g.streamed(s, a.prefix, true)
}

func (a *chatAnswer) roleChunk(s *stream, ch *choice) {
	b := append(s.begin(""), a.prefix...)
	b = a.reasoning(b.raw(`{"index":`).int(ch.index).raw(`,"delta":{"role":"assistant","content":""`))
	b = b.raw(`},"logprobs":null,"finish_reason":null}]`)
	b = a.g.runningUsage(b, a.g.promptTokens, 0)
	if a.g.l.features.has(returnIDs) {
		b = b.raw(`,"prompt_token_ids":`).ids(a.req.ReturnTokenIDs, a.prompt.ids)
	}
	if a.g.l.features.has(modern) {
		b = b.raw(`,"prompt_text":null`)
	}
	s.end(b.raw("}"))
}

// reasoning writes the field that older versions always send.
func (a *chatAnswer) reasoning(b text) text {
	if a.g.l.features.has(modern) {
		return b
	}
	return b.raw(`,"reasoning_content":null`)
}

func (a *chatAnswer) chunk(s *stream, ch *choice, d delta) {
	reason := ch.finish
	if a.tool != nil && ch.finish == "stop" {
		reason = "tool_calls"
	}
	inner, skip := a.delta(ch, d)
	if skip && !d.done && (!a.req.ReturnTokenIDs || !a.g.l.features.has(derender)) {
		return
	}
	b := append(s.begin(""), a.prefix...).raw(`{"index":`).int(ch.index)
	b = append(b.raw(`,"delta":{`), inner...).raw(`},"logprobs":`).chatLogprobs(a.req.Logprobs, d.ids, a.req.TopLogprobs)
	b = b.raw(`,"finish_reason":`).strOrNull(reason)
	if d.done {
		b = b.raw(`,"stop_reason":`).stop(ch.stop)
	}
	if a.g.l.features.has(returnIDs) {
		b = b.raw(`,"token_ids":`).ids(a.req.ReturnTokenIDs, d.ids)
	}
	if d.done {
		b = a.g.versions(b)
	}
	b = a.g.runningUsage(b.raw(`}]`), a.g.promptTokens, len(ch.ids))
	s.end(a.g.transferred(a.g.fingerprint(b, a.g.isLast(d))).raw("}"))
}

// delta writes the inside of a chunk's delta; skip: there is nothing to say.
func (a *chatAnswer) delta(ch *choice, d delta) (inner text, skip bool) {
	switch {
	case thinks(&a.g.l.dialect, a.req):
		p := a.parsers[ch.index]
		if p == nil {
			if a.parsers == nil {
				a.parsers = map[int]*parser{}
			}
			p = &parser{tool: a.tool, thinks: true}
			a.parsers[ch.index] = p
		}
		inner = p.delta(ch, d)
		return inner, len(inner) == 0
	case a.tool != nil:
		inner = a.tool.delta(ch, d)
		return inner, len(inner) == 0
	}
	return a.reasoning(inner.raw(`"content":`).str(d.text)), false
}

// wholePrompt writes the prompt's fields of an answer that is not streamed.
func (a *chatAnswer) wholePrompt(b text) text {
	b = b.raw(`,"prompt_logprobs":null,"prompt_token_ids":`).ids(a.req.ReturnTokenIDs && a.g.l.features.has(returnIDs), a.prompt.ids)
	if a.g.l.features.has(modern) {
		b = b.raw(`,"prompt_text":null`)
	}
	return b
}

func (a *chatAnswer) wholeChoice(b text, ch *choice) text {
	modern, reason := a.g.l.features.has(modern), ch.finish
	b = b.raw(`{"index":`).int(ch.index).raw(`,"message":{"role":"assistant","content":`)
	called := a.tool != nil && ch.finish == "stop"
	if called {
		reason = "tool_calls"
		b = b.raw("null")
	} else {
		b = quote(b, ch.text)
	}
	b = b.raw(`,"refusal":null,"annotations":null,"audio":null,"function_call":null`)
	switch {
	case called:
		calls, err := json.Marshal(a.tool.calls(ch))
		if err != nil {
			panic(err) // our own types always marshal
		}
		b = append(b.raw(`,"tool_calls":`), calls...)
	case !modern:
		b = b.raw(`,"tool_calls":[]`)
	}
	b = a.reasoning(b.raw(`,"reasoning":null`)).raw(`},"logprobs":`).chatLogprobs(a.req.Logprobs, ch.ids, a.req.TopLogprobs)
	b = b.raw(`,"finish_reason":`).strOrNull(reason).raw(`,"stop_reason":`).stop(ch.stop)
	b = b.raw(`,"token_ids":`).ids(a.req.ReturnTokenIDs && a.g.l.features.has(returnIDs), ch.ids)
	if modern {
		b = b.raw(`,"routed_experts":null`)
	}
	return b.raw("}")
}
