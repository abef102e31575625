package router

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// sender sends attempts to replicas.
type sender struct {
	upstream *upstream.Client
	registry *registry.Registry
	tokens   *tokenizer.Pool
	ids      idsSupport
	forms    forms
	stamps   stamps
	log      *slog.Logger
}

// exchange sends an attempt's request and reads the head of the answer. An engine that rejects a body for a member that the router
// has added gets the body again, without it: the client MUST NOT see the difference.
func (e *sender) exchange(ctx context.Context, rq *request, a *attempt) (*upstream.Response, error) {
	to := upstream.Target{Replica: a.choice.Replica, Rank: a.choice.Rank}
	resp, err := e.do(ctx, rq, a, to)
	if err == nil && a.rejectsStandIn(resp) {
		resp.Close()
		rq.drop(&a.part)
		a.asksIDs = false
		resp, err = e.do(ctx, rq, a, to)
	}
	if err != nil || !a.asksIDs {
		return resp, err
	}
	known := e.ids.known(to.Replica)
	switch status := resp.Status; {
	case status < 300 && known != idsAccepted:
		e.ids.learn(to.Replica, idsAccepted, e.registry.Snapshot())
		return resp, nil
	case status != http.StatusBadRequest && status != http.StatusUnprocessableEntity:
		return resp, nil
	}
	body, err := resp.ReadAll(maxErrorBody)
	resp.Close()
	if err != nil {
		return nil, err
	}
	if known == idsAccepted && !bytes.Contains(body, []byte(openai.IDsEdit().Name)) {
		resp.Restore(body)
		return resp, nil
	}
	a.withoutIDs = true
	if resp, err = e.do(ctx, rq, a, to); err == nil && resp.Status < 300 {
		e.log.Info("an engine rejects return_token_ids: its streams are not resumed elsewhere", "replica", string(to.Replica.ID), "version", to.Replica.Version)
		e.ids.learn(to.Replica, idsRefused, e.registry.Snapshot())
	}
	return resp, err
}

// do sends an attempt's request once.
func (e *sender) do(ctx context.Context, rq *request, a *attempt, to upstream.Target) (*upstream.Response, error) {
	out := e.toEngine(ctx, rq, a)
	a.hop.Observe(out, clip(out.Path, 256))
	return e.upstream.Do(ctx, to, out)
}

// mayAskIDs reports whether the attempt's engine can be asked for token ids.
func (e *sender) mayAskIDs(a *attempt) bool {
	return !a.withoutIDs && !a.choice.Replica.RustFrontend && e.ids.known(a.choice.Replica) != idsRefused
}

// toEngine is what the chosen replica is asked for: the client's request, or the rest of its answer.
func (e *sender) toEngine(ctx context.Context, rq *request, a *attempt) *upstream.Request {
	out := &upstream.Request{
		Method: rq.call.method(), Path: rq.call.path(), Query: rq.call.RawQuery,
		Header: rq.header(), Client: rq.call.Client, RequestID: idAt(rq, a), Steers: rq.call.Steers, ContentType: rq.call.ContentType,
	}
	if a.point != nil && a.point.Replay != nil {
		out.Path, out.Query, a.asksIDs = pathGenerate, "", false
		out.Body = a.rest(rq).asIDs(a.choice.Replica, a.point.Replay.Rendered)
		return out
	}
	if a.point != nil && !a.point.Again {
		out.Path, out.Query = openai.RouteCompletions.Path(), ""
		a.asksIDs = e.mayAskIDs(a)
		out.Body = a.rest(rq).asText(a.choice.Replica, a.asksIDs)
		return out
	}
	out.Body = e.outgoing(ctx, rq, a)
	if a.asChat {
		out.Path, out.Query = openai.RouteChat.Path(), ""
	}
	if rq.upload != nil {
		rq.upload.into(out)
	}
	return out
}

// follow makes the follower of a streamed answer, where another replica could resume it exactly; nil for any other. It keeps the ids
// of the whole prompt: where those of other requests have filled the memory for them, the stream is not followed.
func (e *sender) follow(rq *request, on *replica.Replica) *resume.Follower {
	return e.followFor(rq, on, rq.keeps)
}

// followFor is follow; shown says that the reader of the stream gets the ids.
func (e *sender) followFor(rq *request, on *replica.Replica, shown bool) *resume.Follower {
	if rq.chat != nil && !answersChat(on) {
		return nil
	}
	way := rq.way()
	parser := parserOf(rq, way, on)
	if way == openai.WayTokens && parser == resume.NoParser {
		if way = openai.WayNone; rq.parsed.Continuation().Repeats() {
			way = openai.WayRepeat
		}
	}
	switch {
	case way == openai.WayRepeat:
		return resume.New(resume.Params{API: rq.parsed.Prompt.API, Usage: rq.parsed.IncludeUsage, Repeated: rq.parsed.N, Shown: shown, Received: rq.has})
	case way == openai.WayNone, rq.enc == nil, rq.enc.Tokens >= resume.MaxTokens, !rq.enc.Reserve():
		return nil
	}
	p := resume.Params{API: rq.or(rq.parsed).Prompt.API, Usage: rq.or(rq.parsed).IncludeUsage, Parser: parser, Shown: shown, Received: rq.has, Message: rq.chat != nil}
	if parser == resume.HasParser && rq.parsed.Continuation().Repeats() {
		p.Repeated = rq.parsed.N
	}
	p.Stops, _ = rq.or(rq.parsed).Stops()
	p.Logprobs = rq.or(rq.parsed).Logprobs()
	if rq.enc.Exact && !rq.enc.Partial {
		p.Known = rq.enc.IDs
	}
	if rq.chat != nil && len(p.Known) == 0 { // nothing shows that the chat has the prompt of the message
		return nil
	}
	return resume.New(p)
}

// outgoing is the body for the chosen replica: the client's, or the one that hands the ids over. A stream that is followed
// asks for the ids, too, but not of the Rust front end, which then writes other bytes.
func (e *sender) outgoing(ctx context.Context, rq *request, a *attempt) []byte {
	followed := false
	if a.cache != nil {
		rq.clear() // a request that is decoded elsewhere is sent unchanged
	}
	form := e.formFor(rq, a)
	if a.point == nil && (form != nil || rq.streamed == nil) { // else the answer is repeated, and its follower has what the client has
		a.follower = e.followFor(rq, a.choice.Replica, rq.keeps || form != nil && form.Parsed())
	}
	from := rq.parsed
	if form != nil && a.follower != nil {
		a.whole, from = resume.NewWhole(form), rq.streamed
	}
	if a.follower != nil && !a.follower.Repeats() {
		if followed = e.mayAskIDs(a); !followed {
			a.follower.Lose(resume.LostIDs)
		}
	}
	a.asksIDs = followed
	if a.asChat = a.point == nil && a.follower != nil && rq.chat != nil; a.asChat {
		if followed {
			return rq.chat.Edit(openai.IDsEdit())
		}
		rq.drop(&a.part)
	}
	if a.cache != nil {
		if followed {
			return a.cache.legs.Decode(a.cache.params, openai.IDsEdit())
		}
		return a.cache.legs.Decode(a.cache.params)
	}
	if a.point != nil && a.point.Response != "" {
		return rq.parsed.Edit(openai.ModelEdit(rq.pool.Served), openai.ResponseIDEdit(a.point.Response))
	}
	if rq.enc == nil || len(rq.enc.IDs) == 0 {
		return rq.plain(from, followed)
	}
	h := e.tokens.Handoff(ctx, rq.encodeRequest(), rq.enc, a.choice.Replica)
	if h.Form == tokenizer.HandoffNone {
		return rq.plain(from, followed)
	}
	edit, ok := from.PromptIDsEdit(h.IDs)
	if !ok {
		return rq.plain(from, followed)
	}
	a.handedOff = true
	if followed {
		return from.Edit(openai.ModelEdit(rq.pool.Served), edit, openai.IDsEdit())
	}
	rq.enc.LetGo() // another attempt sends the text
	return rq.parsed.Edit(openai.ModelEdit(rq.pool.Served), edit)
}

// plain is the client's body; a stream that is followed, of the request from, asks for the ids.
func (rq *request) plain(from *openai.Request, followed bool) []byte {
	switch {
	case !followed:
		return rq.body
	case from.Model == "":
		return from.Edit(openai.IDsEdit())
	}
	return from.Edit(openai.ModelEdit(rq.pool.Served), openai.IDsEdit())
}
