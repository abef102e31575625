package enginesim

import (
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// tokenizeRequest is both forms of /tokenize.
type tokenizeRequest struct {
	chatRequest
	Prompt          *string `json:"prompt"`
	ReturnTokenStrs bool    `json:"return_token_strs"`
}

type tokenizeReply struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

func (d *dialect) tokenize(c *call) {
	var req tokenizeRequest
	if !d.read(c, &req) {
		return
	}
	var p promptIDs
	var bad *apiError
	switch {
	case req.Messages != nil:
		req.KVTransfer, req.Documents, req.ReasoningEffort = nil, nil, nil // no fields of this route
		p, bad = d.chatPrompt(&req.chatRequest)
	case req.Prompt != nil:
		if bad = d.known(&req.Model); bad == nil {
			p.ids = d.cfg.Vocabulary.Encode(*req.Prompt, req.AddSpecialTokens == nil || *req.AddSpecialTokens)
		}
	default:
		e := missingField("prompt")
		bad = &e
	}
	if bad != nil {
		d.fail(c, *bad)
		return
	}
	ids := append([]uint32{}, d.answerIDs(c, p.ids)...) // a list, also when empty
	reply := tokenizeReply{Count: len(ids), MaxModelLen: d.cfg.Core.MaxModelLen, Tokens: ids}
	if req.ReturnTokenStrs {
		for _, id := range ids {
			reply.TokenStrs = append(reply.TokenStrs, safe(d.cfg.Vocabulary.Decode([]uint32{id})))
		}
	}
	c.replyNulls(reply)
}

// answerIDs is the answer of a tokenizing route: the ids, or by fault others.
func (d *dialect) answerIDs(c *call, ids []uint32) []uint32 {
	if !c.faults.WrongIDs {
		return ids
	}
	wrong := make([]uint32, len(ids))
	for i, id := range ids {
		wrong[i] = (id + 1) % vocab.Size
	}
	return wrong
}

// replyNulls answers v with nil slices written as null, as Python does.
func (c *call) replyNulls(v any) {
	b, err := json.Marshal(v, json.Deterministic(true), json.FormatNilSliceAsNull(true), json.FormatNilMapAsNull(true))
	if err != nil {
		panic(err) // our own types always marshal
	}
	c.send(http.StatusOK, "application/json", b)
}

func (d *dialect) detokenize(c *call) {
	var req struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if !d.read(c, &req) {
		return
	}
	if bad := d.known(&req.Model); bad != nil {
		d.fail(c, *bad)
		return
	}
	if req.Tokens == nil {
		d.fail(c, missingField("tokens"))
		return
	}
	b := quote([]byte(`{"prompt":`), safe(d.cfg.Vocabulary.Decode(req.Tokens)))
	c.send(http.StatusOK, "application/json", append(b, '}'))
}

// rendered is the reply of /render: the engine's own request.
type rendered struct {
	RequestID      string         `json:"request_id"`
	Model          string         `json:"model"`
	TokenIDs       []uint32       `json:"token_ids"`
	Mask           []int          `json:"assistant_tokens_mask"`
	Offsets        [][2]int       `json:"token_offsets"`
	Features       *mmFeatures    `json:"features"`
	SamplingParams samplingParams `json:"sampling_params"`
	Stream         bool           `json:"stream"`
	StreamOptions  *streamOptions `json:"stream_options"`
	CacheSalt      *string        `json:"cache_salt"`
	Priority       int            `json:"priority"`
	KVTransfer     jsontext.Value `json:"kv_transfer_params"`
	ECTransfer     jsontext.Value `json:"ec_transfer_params"`
}

type samplingParams struct {
	MaxTokens *int `json:"max_tokens"`
	N         int  `json:"n"`
	// Structured is the grammar of an answer that must call a tool.
	Structured any `json:"structured_outputs"`
}

type mmFeatures struct {
	Hashes       map[string][]string   `json:"mm_hashes"`
	Placeholders map[string][]mmPlace  `json:"mm_placeholders"`
	Kwargs       map[string][]struct{} `json:"kwargs_data"`
}

type mmPlace struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// renderAllowed answers for versions that hide the route.
func (d *dialect) renderAllowed(c *call) bool {
	if !d.features.has(renderGuarded) || d.cfg.ScaleOut {
		return true
	}
	d.fail(c, apiError{
		Status: http.StatusForbidden, Type: "PermissionDeniedError",
		Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
	})
	return false
}

func (l *life) renderChat(c *call) {
	var req chatRequest
	if !l.renderAllowed(c) || !l.read(c, &req) {
		return
	}
	p, bad := l.chatPrompt(&req)
	if bad == nil {
		bad = l.renderable(&req.sampling)
	}
	if bad == nil {
		_, bad = l.fit(&req.sampling, &p)
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	out := l.render(c, &req.sampling, p, "chatcmpl-")
	if choice := string(req.ToolChoice); len(req.Tools) > 0 && choice != "" && choice != "null" && choice != `"auto"` && choice != `"none"` {
		out.SamplingParams.Structured = map[string]string{"structural_tag": "{}"}
	}
	c.replyNulls(out)
}

func (l *life) renderMessages(c *call) {
	if !l.renderAllowed(c) {
		return
	}
	if chat, p, ok := l.messagesChat(c); ok {
		c.replyNulls(l.render(c, &chat.sampling, p, "chatcmpl-"))
	}
}

func (l *life) renderResponses(c *call) {
	var req responseRequest
	if !l.renderAllowed(c) || !l.read(c, &req) {
		return
	}
	var p promptIDs
	var chat chatRequest
	bad := &apiError{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Param: "previous_response_id",
		Message: "previous_response_id is not supported by the stateless render endpoint.",
	}
	if req.PreviousResponseID == nil {
		chat, p, bad = l.responsePrompt(&req)
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	c.replyNulls(l.render(c, &chat.sampling, p, "resp_"))
}

func (l *life) renderCompletion(c *call) {
	var req completionRequest
	if !l.renderAllowed(c) || !l.read(c, &req) {
		return
	}
	prompts, bad := l.completionPrompts(&req)
	if bad == nil {
		bad = l.renderable(&req.sampling)
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	var list []rendered
	for _, p := range prompts {
		if _, bad := l.fit(&req.sampling, &p); bad != nil {
			l.fail(c, *bad)
			return
		}
		list = append(list, l.render(c, &req.sampling, p, "cmpl-"))
	}
	c.replyNulls(list)
}

// renderable finds a refusal of the render routes: they refuse the same as the routes that generate, and beam searches, which
// those serve.
func (d *dialect) renderable(s *sampling) *apiError {
	if s.BeamSearch {
		return reject("Beam search is not supported by the render endpoint", "")
	}
	return d.check(s)
}

func (l *life) render(c *call, s *sampling, p promptIDs, prefix string) rendered {
	out := rendered{
		RequestID: prefix + l.requestID(c.r, s.RequestID), Model: s.Model, TokenIDs: l.answerIDs(c, p.ids),
		SamplingParams: samplingParams{MaxTokens: s.limit(), N: 1},
		KVTransfer:     jsontext.Value("null"), ECTransfer: jsontext.Value("null"),
	}
	if l.features.has(derender) {
		out.Stream, out.StreamOptions = s.Stream, s.StreamOptions
	}
	if s.N != nil {
		out.SamplingParams.N = *s.N
	}
	if s.CacheSalt != "" {
		out.CacheSalt = &s.CacheSalt
	}
	if len(p.items) > 0 {
		f := &mmFeatures{Hashes: map[string][]string{}, Placeholders: map[string][]mmPlace{}}
		for _, it := range p.items {
			f.Hashes["image"] = append(f.Hashes["image"], it.ID)
			f.Placeholders["image"] = append(f.Placeholders["image"], mmPlace{it.Offset, it.Length})
		}
		out.Features = f
	}
	return out
}
