package enginesim

import (
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// completionRequest has the fields of /v1/completions that change the answer.
type completionRequest struct {
	sampling
	Prompt   jsontext.Value `json:"prompt"`
	Echo     bool           `json:"echo"`
	Logprobs *int           `json:"logprobs"`
}

// defaultAnswer is max_tokens of /v1/completions when the client names none.
const defaultAnswer = 16

func (l *life) completion(c *call) {
	var req completionRequest
	if !l.read(c, &req) {
		return
	}
	prompts, bad := l.completionPrompts(&req)
	if bad == nil {
		bad = l.check(&req.sampling)
	}
	if bad == nil && req.Stream && req.BeamSearch {
		bad = reject("Streaming is not currently supported with beam search", "")
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	if req.limit() == nil {
		n := defaultAnswer
		req.MaxTokens = &n
	}
	l.answer(c, &req.sampling, "cmpl-", prompts, func(g *generation) bool {
		a := &completionAnswer{g: g, req: &req, echoed: map[int]bool{}}
		if !req.Stream {
			return g.whole("text_completion", false, a.wholeChoice, func(b text) text { return b })
		}
		prefix := g.chunkPrefix("text_completion")
		s, ok := g.stream(func(*stream) {}, func(s *stream, ch *choice, d delta) {
			s.end(a.chunk(append(s.begin(""), prefix...), ch, d))
		})
		return ok && g.streamed(s, prefix, false)
	})
}

// completionPrompts checks the model and reads the prompt.
func (d *dialect) completionPrompts(req *completionRequest) ([]promptIDs, *apiError) {
	if bad := d.known(&req.Model); bad != nil {
		return nil, bad
	}
	return d.readPrompts(req.Prompt, req.AddSpecialTokens == nil || *req.AddSpecialTokens)
}

// readPrompts reads a string, token ids, a list of strings or a list of token ids.
func (d *dialect) readPrompts(raw jsontext.Value, special bool) ([]promptIDs, *apiError) {
	wrong := func() *apiError {
		return reject("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
	}
	plain := func(s string) promptIDs { return promptIDs{ids: d.cfg.Vocabulary.Encode(s, special), text: s} }
	given := func(ids []uint32) promptIDs {
		return promptIDs{ids: ids, text: string(vocab.Decode(nil, ids, true)), given: true}
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, wrong()
	}
	var one string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &one, jsontext.AllowInvalidUTF8(true)); err != nil {
			return nil, wrong()
		}
		return []promptIDs{plain(one)}, nil
	}
	var ids []uint32
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return []promptIDs{given(ids)}, nil
	}
	var list []jsontext.Value
	if json.Unmarshal(raw, &list, jsontext.AllowInvalidUTF8(true)) != nil || len(list) == 0 {
		return nil, wrong()
	}
	var prompts []promptIDs
	for _, item := range list {
		var s string
		var ids []uint32
		switch {
		case json.Unmarshal(item, &s, jsontext.AllowInvalidUTF8(true)) == nil:
			prompts = append(prompts, plain(s))
		case json.Unmarshal(item, &ids) == nil:
			prompts = append(prompts, given(ids))
		default:
			return nil, wrong()
		}
	}
	return prompts, nil
}

type completionAnswer struct {
	g   *generation
	req *completionRequest
	// echoed marks the choices whose prompt has been written.
	echoed map[int]bool
}

func (a *completionAnswer) chunk(b text, ch *choice, d delta) text {
	g := a.g
	first := !a.echoed[ch.index]
	a.echoed[ch.index] = true
	said := d.text
	if first && a.req.Echo {
		said = ch.prompt.text + said
	}
	offset := utf8.RuneCount(ch.text) - utf8.RuneCountInString(d.text)
	b = b.raw(`{"index":`).int(ch.index).raw(`,"text":`).str(said).raw(`,"logprobs":`).logprobs(a.req.Logprobs, d.ids, offset, 0)
	b = b.raw(`,"finish_reason":`).strOrNull(ch.finish).raw(`,"stop_reason":`).stop(ch.stop)
	if g.l.features.has(returnIDs) {
		b = b.raw(`,"prompt_token_ids":`).ids(a.req.ReturnTokenIDs && first, ch.prompt.ids)
		b = b.raw(`,"token_ids":`).ids(a.req.ReturnTokenIDs, d.ids)
	}
	b = g.versions(b).raw(`}]`)
	n := len(b)
	if b = g.runningUsage(b, len(ch.prompt.ids), len(ch.ids)); len(b) == n && !g.l.features.has(modern) {
		b = b.raw(`,"usage":null`)
	}
	return g.transferred(g.fingerprint(b, g.isLast(d))).raw("}")
}

func (a *completionAnswer) wholeChoice(b text, ch *choice) text {
	said, ids, skip := string(ch.text), ch.ids, 0
	if a.req.Echo {
		said = ch.prompt.text + said
		ids, skip = slices.Concat(ch.prompt.ids, ch.ids), 1
	}
	asked := a.req.ReturnTokenIDs && a.g.l.features.has(returnIDs)
	b = b.raw(`{"index":`).int(ch.index).raw(`,"text":`).str(said).raw(`,"logprobs":`).logprobs(a.req.Logprobs, ids, 0, skip)
	b = b.raw(`,"finish_reason":`).strOrNull(ch.finish).raw(`,"stop_reason":`).stop(ch.stop)
	b = b.raw(`,"token_ids":`).ids(asked, ch.ids).raw(`,"prompt_logprobs":null,"prompt_token_ids":`).ids(asked, ch.prompt.ids)
	if a.g.l.features.has(modern) {
		b = b.raw(`,"routed_experts":null`)
	}
	return b.raw("}")
}
