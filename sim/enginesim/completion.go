package enginesim

import (
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// completionRequest is what of /v1/completions changes the answer.
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
		bad = refuse("Streaming is not currently supported with beam search", "")
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	if req.limit() == nil {
		n := defaultAnswer
		req.MaxTokens = &n
	}
	g := l.start(c, &req.sampling, "cmpl-", prompts)
	if g == nil {
		return
	}
	ok := false
	defer func() { g.end(ok) }()
	a := &completionAnswer{g: g, req: &req}
	if req.Stream {
		ok = a.stream()
	} else {
		ok = a.whole()
	}
}

// completionPrompts checks the model and reads the prompt.
func (l *life) completionPrompts(req *completionRequest) ([]promptIDs, *apiError) {
	if bad := l.known(&req.Model); bad != nil {
		return nil, bad
	}
	return l.readPrompts(req.Prompt, req.AddSpecialTokens == nil || *req.AddSpecialTokens)
}

// readPrompts reads a string, token ids, a list of strings or a list of token ids.
func (l *life) readPrompts(raw jsontext.Value, special bool) ([]promptIDs, *apiError) {
	wrong := func() *apiError {
		return refuse("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
	}
	text := func(s string) promptIDs { return promptIDs{ids: l.cfg.Vocabulary.Encode(s, special), text: s} }
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
		return []promptIDs{text(one)}, nil
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
			prompts = append(prompts, text(s))
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

func (a *completionAnswer) stream() bool {
	g := a.g
	s := newStream(g.l, g.c)
	prefix := g.chunkPrefix("text_completion")
	a.echoed = map[int]bool{}
	started := false
	ok := g.each(func(ch *choice, d delta) bool {
		if !started {
			started = true
			s.head()
		}
		s.end(a.chunk(append(s.begin(""), prefix...), ch, d))
		s.send()
		return !s.ended
	})
	if !ok {
		return false
	}
	if o := a.req.StreamOptions; o != nil && o.IncludeUsage {
		b := append(append(s.begin(""), prefix...), `],"usage":`...)
		b = g.usage(false).final(b, g.l)
		s.end(append(g.fingerprint(b, true), '}'))
	}
	s.done()
	return true
}

func (a *completionAnswer) chunk(b []byte, ch *choice, d delta) []byte {
	g := a.g
	first := !a.echoed[ch.index]
	a.echoed[ch.index] = true
	text := d.text
	if first && a.req.Echo {
		text = ch.prompt.text + text
	}
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ch.index), 10)
	b = quote(append(b, `,"text":`...), text)
	b = append(b, `,"logprobs":`...)
	if a.req.Logprobs != nil {
		offset := utf8.RuneCount(ch.text) - utf8.RuneCountInString(d.text)
		b = appendLogprobs(b, d.ids, *a.req.Logprobs, offset, 0)
	} else {
		b = append(b, "null"...)
	}
	b = reasonOrNull(append(b, `,"finish_reason":`...), ch.finish)
	b = appendAny(append(b, `,"stop_reason":`...), ch.stop)
	if g.l.features.returnIDs {
		b = append(b, `,"prompt_token_ids":`...)
		b = idsOrNull(b, a.req.ReturnTokenIDs && first, ch.prompt.ids)
		b = append(b, `,"token_ids":`...)
		b = idsOrNull(b, a.req.ReturnTokenIDs, d.ids)
	}
	b = append(b, `}]`...)
	o := a.req.StreamOptions
	switch {
	case o != nil && o.IncludeUsage && o.Continuous:
		u := usage{prompt: len(ch.prompt.ids), completion: len(ch.ids)}
		b = u.running(append(b, `,"usage":`...), g.l)
	case !g.l.features.modern:
		b = append(b, `,"usage":null`...)
	}
	return append(g.fingerprint(b, d.done), '}')
}

func (a *completionAnswer) whole() bool {
	g := a.g
	if !g.each(func(*choice, delta) bool { return true }) {
		return false
	}
	b := g.chunkPrefix("text_completion")
	for i, ch := range g.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.wholeChoice(b, ch)
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":`...)
	b = g.wholeFingerprint(b)
	b = append(b, `,"usage":`...)
	b = g.usage(false).whole(b, g.l)
	if g.l.features.modern {
		b = append(b, `,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
	} else {
		b = append(b, `,"kv_transfer_params":null}`...)
	}
	g.c.send(http.StatusOK, "application/json", b)
	return true
}

func (a *completionAnswer) wholeChoice(b []byte, ch *choice) []byte {
	g := a.g
	text := string(ch.text)
	ids, skip := ch.ids, 0
	if a.req.Echo {
		text = ch.prompt.text + text
		ids, skip = append(append([]uint32{}, ch.prompt.ids...), ch.ids...), 1
	}
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(ch.index), 10)
	b = quote(append(b, `,"text":`...), text)
	b = append(b, `,"logprobs":`...)
	if a.req.Logprobs != nil {
		b = appendLogprobs(b, ids, *a.req.Logprobs, 0, skip)
	} else {
		b = append(b, "null"...)
	}
	b = reasonOrNull(append(b, `,"finish_reason":`...), ch.finish)
	b = appendAny(append(b, `,"stop_reason":`...), ch.stop)
	asked := a.req.ReturnTokenIDs && g.l.features.returnIDs
	b = idsOrNull(append(b, `,"token_ids":`...), asked, ch.ids)
	b = append(b, `,"prompt_logprobs":null`...)
	b = idsOrNull(append(b, `,"prompt_token_ids":`...), asked, ch.prompt.ids)
	if g.l.features.modern {
		b = append(b, `,"routed_experts":null`...)
	}
	return append(b, '}')
}
