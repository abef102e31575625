package enginesim

import (
	"bytes"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// generateRequest is the body of the route that takes and returns token ids.
type generateRequest struct {
	Model         string         `json:"model"`
	TokenIDs      []uint32       `json:"token_ids"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	CacheSalt     string         `json:"cache_salt"`
	RequestID     string         `json:"request_id"`
	Params        struct {
		ending
		MaxTokens *int   `json:"max_tokens"`
		Seed      *int64 `json:"seed"`
	} `json:"sampling_params"`
}

// tokenRoutes are the routes of a life that take and return token ids: for a front end of its own (--enable-scale-out).
type tokenRoutes struct{ *life }

// generate serves the route as far as its stream of token ids goes.
func (l tokenRoutes) generate(c *call) {
	var req generateRequest
	if !l.renderAllowed(c) || !l.read(c, &req) {
		return
	}
	s := &sampling{
		ending: req.Params.ending, Model: req.Model, Stream: req.Stream, StreamOptions: req.StreamOptions,
		MaxTokens: req.Params.MaxTokens, Seed: req.Params.Seed, CacheSalt: req.CacheSalt, RequestID: req.RequestID,
	}
	bad := l.known(&s.Model)
	if bad == nil && (len(req.TokenIDs) == 0 || !req.Stream) {
		bad = reject("the simulator streams the tokens of one or more ids", "token_ids")
	}
	if bad == nil {
		bad = l.check(s)
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	p := promptIDs{ids: req.TokenIDs, given: true}
	p.forced, p.said = l.begun(req.TokenIDs)
	l.answer(c, s, "generate-tokens-", []promptIDs{p}, func(g *generation) bool {
		st, ok := g.stream(func(*stream) {}, func(st *stream, ch *choice, d delta) {
			b := st.begin("").raw(`{"request_id":`).str(g.id).raw(`,"usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":`).strOrNull(ch.finish)
			b = b.raw(`,"stop_reason":`).stop(ch.stop).raw(`,"token_ids":`).ids(true, d.ids)
			b = b.raw(`,"routed_experts":null,"sampling_mask":null,"weight_versions":`)
			if d.done {
				b = b.raw(`[{"version":"default","start":0,"end":`).int(len(ch.ids)).raw(`}]`)
			} else {
				b = b.raw("null")
			}
			st.end(b.raw(`,"logprobs":null}]}`))
		})
		if !ok {
			return false
		}
		if o := s.StreamOptions; o != nil && o.IncludeUsage {
			b := st.begin("").raw(`{"request_id":`).str(g.id).raw(`,"usage":`)
			b = g.usage(false).final(b, &l.dialect)
			st.end(b.raw(`,"output_mode":"tokens","choices":[]}`))
		}
		st.done()
		return true
	})
}

// begun returns the text that the model is made to write for a chat's prompt, which ids begin with, and how many tokens of it they end with.
func (l tokenRoutes) begun(ids []uint32) (forced string, said int) {
	opening := vocab.Encode(nil, "<|im_start|>assistant\n")
	for at := len(ids) - len(opening); at >= 0; at-- {
		if !slices.Equal(ids[at:at+len(opening)], opening) {
			continue
		}
		rest := ids[at+len(opening):]
		forced, _ = l.forced(conversation(ids[:at]))
		whole := vocab.Encode(nil, forced)
		if forced == "" || len(rest) > len(whole) || !slices.Equal(rest, whole[:len(rest)]) {
			return "", 0
		}
		return forced, len(rest)
	}
	return "", 0
}

// derenderRequest is one portion of a stream, with all that came before it.
type derenderRequest struct {
	Stream bool   `json:"stream"`
	Model  string `json:"model"`
	Chunk  struct {
		RequestID string `json:"request_id"`
		Choices   []struct {
			IDs    []uint32       `json:"token_ids"`
			Finish string         `json:"finish_reason"`
			Stop   jsontext.Value `json:"stop_reason"`
		} `json:"choices"`
	} `json:"generate_chunk"`
	Whole struct {
		RequestID string `json:"request_id"`
		Choices   []struct {
			IDs    []uint32       `json:"token_ids"`
			Finish string         `json:"finish_reason"`
			Stop   jsontext.Value `json:"stop_reason"`
		} `json:"choices"`
	} `json:"generate_response"`
	State struct {
		IDs     []uint32 `json:"output_token_ids"`
		Lengths []int    `json:"output_chunk_lens"`
		Calls   []string `json:"last_tool_call_ids"`
	} `json:"stream_state"`
	Prompt []uint32    `json:"prompt_token_ids"`
	Chat   chatRequest `json:"chat_request"`
}

// derender parses a portion behind the ones before, as an engine with a tool parser and a reasoning parser does.
func (l tokenRoutes) derender(c *call) {
	var req derenderRequest
	if !l.renderAllowed(c) || !l.read(c, &req) {
		return
	}
	if !req.Stream {
		l.derenderWhole(c, &req)
		return
	}
	total := 0
	for _, n := range req.State.Lengths {
		total += n
	}
	var bad *apiError
	switch {
	case len(req.Chat.Stop) > 0:
		bad = reject("stop strings are not supported by streaming derender because text already sent cannot be cut.", "")
	case req.Prompt == nil:
		bad = reject("prompt_token_ids is required when a tool or reasoning parser is configured.", "")
	case len(req.Chunk.Choices) > 1:
		bad = reject("derender_chat_stream expects at most one choice per chunk", "")
	case total != len(req.State.IDs):
		bad = reject("output_chunk_lens must sum to len(output_token_ids)", "")
	default:
		bad = l.known(&req.Model)
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	c.send(http.StatusOK, "application/json", l.derendered(&req))
}

// derenderWhole makes a chat of all tokens of an answer. An engine with a parser rejects it without the chat's request.
func (l tokenRoutes) derenderWhole(c *call, req *derenderRequest) {
	bad := l.known(&req.Model)
	switch {
	case bad != nil:
	case !l.cfg.NoParser && req.Chat.Messages == nil:
		bad = reject("chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak raw parser markup into content.", "")
	case len(req.Whole.Choices) != 1 || len(req.Whole.Choices[0].IDs) == 0:
		bad = reject("the simulator makes a chat of one choice with tokens", "")
	}
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	one := &req.Whole.Choices[0]
	ids := one.IDs
	if n := len(ids) - 1; one.Finish == "stop" && ids[n] == vocab.TurnEnd {
		ids = ids[:n]
	}
	_, tool := l.forced(&req.Chat)
	ch := &choice{callID: l.newID(), ids: ids, finish: one.Finish}
	ch.text = ch.detok.feed(nil, ids)
	if len(one.Stop) > 0 && json.Unmarshal(one.Stop, &ch.stop) != nil {
		ch.stop = nil
	}
	a := &chatAnswer{g: &generation{l: l.life}, req: &req.Chat, tool: tool}
	b := text(`{"id":`).str(req.Whole.RequestID).raw(`,"object":"chat.completion","created":1,"model":`).str(req.Model).raw(`,"choices":[`)
	b = a.wholeChoice(b, ch).raw(`],"service_tier":null,"system_fingerprint":null,"usage":`)
	c.send(http.StatusOK, "application/json", usage{completion: len(one.IDs), chat: true}.whole(b, &l.dialect).raw(`}`))
}

func (l tokenRoutes) derendered(req *derenderRequest) text {
	_, tool := l.forced(&req.Chat)
	ch := &choice{bare: true, callID: l.newID()}
	p := &parser{tool: tool, thinks: thinks(&l.dialect, &req.Chat)}
	feed := func(ids []uint32, done bool) text {
		if done && len(ids) > 0 && ids[len(ids)-1] == vocab.TurnEnd {
			ids = ids[:len(ids)-1]
		}
		return p.delta(ch, delta{ids: ids, text: string(ch.detok.feed(nil, ids)), done: done})
	}
	at := 0
	for _, n := range req.State.Lengths {
		feed(req.State.IDs[at:at+n], false)
		at += n
	}
	if tool != nil && len(req.State.Calls) > 0 {
		tool.pin(ch, req.State.Calls[0])
	}
	calls := req.State.Calls
	b := text(`{"chunk":{"id":`).str(req.Chunk.RequestID).raw(`,"object":"chat.completion.chunk","created":1,"model":`).str(req.Model).raw(`,"choices":[`)
	all, lengths := req.State.IDs, req.State.Lengths
	for _, one := range req.Chunk.Choices {
		inner := feed(one.IDs, one.Finish != "")
		if tool != nil && len(calls) == 0 && bytes.Contains(inner, []byte(`"id":`)) {
			calls = []string{tool.progress[0].id}
		}
		reason := one.Finish
		if tool != nil && reason == "stop" {
			reason = "tool_calls"
		}
		if len(inner) == 0 {
			inner = text(`"tool_calls":[]`)
		}
		b = append(b.raw(`{"index":0,"delta":{"role":null,`), inner...).raw(`},"logprobs":null,"finish_reason":`).strOrNull(reason)
		b = b.raw(`,"stop_reason":`)
		if len(one.Stop) > 0 {
			b = append(b, one.Stop...)
		} else {
			b = b.raw("null")
		}
		b = b.raw(`,"token_ids":null,"weight_versions":null}`)
		if len(one.IDs) > 0 {
			all, lengths = append(all, one.IDs...), append(lengths, len(one.IDs))
		}
	}
	b = b.raw(`],"usage":null,"system_fingerprint":null,"prompt_token_ids":null,"prompt_text":null,"metrics":null,"kv_transfer_params":null},"stream_state":{"prev_tokens":[],"prefix_offset":0,"read_offset":0,"role_sent":true`)
	b = b.raw(`,"output_token_ids":`).ids(true, all).raw(`,"output_chunk_lens":`).list(len(lengths), '[', ']', func(b text, i int) text { return b.int(lengths[i]) })
	b = b.raw(`,"tools_streamed":`)
	if len(calls) > 0 {
		b = b.raw("true")
	} else {
		b = b.raw("false")
	}
	return b.raw(`,"last_tool_call_ids":`).list(len(calls), '[', ']', func(b text, i int) text { return b.str(calls[i]) }).raw("}}")
}
