package attempt

import (
	"bytes"
	"context"
	"log/slog"
	"mime"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// sender sends attempts to replicas.
type sender struct {
	upstream *upstream.Client
	Registry *registry.Registry
	tokens   *tokenizer.Pool
	ids      idsSupport
	forms    forms
	stamps   stamps
	log      *slog.Logger
}

// exchange sends an attempt's request and reads the head of the answer. An engine that rejects a body for a member that the router
// has added gets the body again, without it: the client MUST NOT see the difference.
func (e *sender) exchange(ctx context.Context, rq *intake.Request, a *Attempt) (*upstream.Response, error) {
	to := upstream.Target{Replica: a.Choice.Replica, Rank: a.Choice.Rank}
	resp, err := e.do(ctx, rq, a, to)
	if err == nil && a.rejectsStandIn(resp) {
		resp.Close()
		a.drop(rq)
		a.asksIDs = false
		resp, err = e.do(ctx, rq, a, to)
	}
	if err != nil || !a.asksIDs {
		return resp, err
	}
	known := e.ids.known(to.Replica)
	switch status := resp.Status; {
	case status < 300 && known != idsAccepted:
		e.ids.learn(to.Replica, idsAccepted, e.Registry.Snapshot())
		return resp, nil
	case status != http.StatusBadRequest && status != http.StatusUnprocessableEntity:
		return resp, nil
	}
	body, err := resp.ReadAll(MaxErrorBody)
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
		e.ids.learn(to.Replica, idsRefused, e.Registry.Snapshot())
	}
	return resp, err
}

// do sends an attempt's request once.
func (e *sender) do(ctx context.Context, rq *intake.Request, a *Attempt, to upstream.Target) (*upstream.Response, error) {
	out := e.toEngine(ctx, rq, a)
	a.Hop.Observe(out, intake.Clip(out.Path, 256))
	return e.upstream.Do(ctx, to, out)
}

// mayAskIDs reports whether the attempt's engine can be asked for token ids.
func (e *sender) mayAskIDs(a *Attempt) bool {
	return !a.withoutIDs && !a.Choice.Replica.RustFrontend && e.ids.known(a.Choice.Replica) != idsRefused
}

// toEngine is what the chosen replica is asked for: the client's request, or the rest of its answer.
func (e *sender) toEngine(ctx context.Context, rq *intake.Request, a *Attempt) *upstream.Request {
	out := &upstream.Request{
		Method: rq.Call.EngineMethod(), Path: rq.Call.EnginePath(), Query: rq.Call.RawQuery,
		Header: rq.Header(), Client: rq.Call.Client, RequestID: idAt(rq, a), Steers: rq.Call.Steers, ContentType: rq.Call.ContentType,
	}
	if a.point != nil && a.point.Replay != nil {
		out.Path, out.Query, a.asksIDs = pathGenerate, "", false
		out.Body = a.rest(rq).AsIDs(a.Choice.Replica, a.point.Replay.Rendered)
		return out
	}
	if a.point != nil && !a.point.Again {
		out.Path, out.Query = openai.RouteCompletions.Path(), ""
		a.asksIDs = e.mayAskIDs(a)
		out.Body = a.rest(rq).asText(a.Choice.Replica, a.asksIDs)
		return out
	}
	out.Body = e.outgoing(ctx, rq, a)
	if a.asChat {
		out.Path, out.Query = openai.RouteChat.Path(), ""
	}
	if rq.Upload != nil {
		rq.Upload.Into(out)
	}
	return out
}

// Follow makes the follower of a streamed answer, where another replica could resume it exactly; nil for any other. It keeps the ids
// of the whole prompt: where those of other requests have filled the memory for them, the stream is not followed.
func (e *sender) Follow(rq *intake.Request, on *replica.Replica) *resume.Follower {
	return e.followFor(rq, on, rq.Keeps)
}

// followFor is Follow; shown says that the reader of the stream gets the ids.
func (e *sender) followFor(rq *intake.Request, on *replica.Replica, shown bool) *resume.Follower {
	if rq.Chat != nil && !intake.AnswersChat(on) {
		return nil
	}
	way := rq.Way()
	parser := parserOf(rq, way, on)
	if way == openai.WayTokens && parser == resume.NoParser {
		if way = openai.WayNone; rq.Parsed.Continuation().Repeats() {
			way = openai.WayRepeat
		}
	}
	switch {
	case way == openai.WayRepeat:
		return resume.New(resume.Params{API: rq.Parsed.Prompt.API, Usage: rq.Parsed.IncludeUsage, Repeated: rq.Parsed.N, Shown: shown, Received: rq.Events})
	case way == openai.WayNone, rq.Enc == nil, rq.Enc.Tokens >= resume.MaxTokens, !rq.Enc.Reserve():
		return nil
	}
	p := resume.Params{API: rq.Or(rq.Parsed).Prompt.API, Usage: rq.Or(rq.Parsed).IncludeUsage, Parser: parser, Shown: shown, Received: rq.Events, Message: rq.Chat != nil}
	if parser == resume.HasParser && rq.Parsed.Continuation().Repeats() {
		p.Repeated = rq.Parsed.N
	}
	p.Stops, _ = rq.Or(rq.Parsed).Stops()
	p.Logprobs = rq.Or(rq.Parsed).Logprobs()
	if rq.Enc.Exact && !rq.Enc.Partial {
		p.Known = rq.Enc.IDs
	}
	if rq.Chat != nil && len(p.Known) == 0 { // nothing shows that the chat has the prompt of the message
		return nil
	}
	return resume.New(p)
}

// outgoing is the body for the chosen replica: the client's, or the one that hands the ids over. A stream that is followed
// asks for the ids, too, but not of the Rust front end, which then writes other bytes.
func (e *sender) outgoing(ctx context.Context, rq *intake.Request, a *Attempt) []byte {
	followed := false
	if a.cache != nil {
		rq.Clear() // a request that is decoded elsewhere is sent unchanged
	}
	form := e.formFor(rq, a)
	if a.point == nil && (form != nil || rq.Streamed == nil) { // else the answer is repeated, and its follower has what the client has
		a.follower = e.followFor(rq, a.Choice.Replica, rq.Keeps || form != nil && form.Parsed())
	}
	from := rq.Parsed
	if form != nil && a.follower != nil {
		a.whole, from = resume.NewWhole(form), rq.Streamed
	}
	if a.follower != nil && !a.follower.Repeats() {
		if followed = e.mayAskIDs(a); !followed {
			a.follower.Lose(resume.LostIDs)
		}
	}
	a.asksIDs = followed
	if a.asChat = a.point == nil && a.follower != nil && rq.Chat != nil; a.asChat {
		if followed {
			return rq.Chat.Edit(openai.IDsEdit())
		}
		a.drop(rq)
	}
	if a.cache != nil {
		if followed {
			return a.cache.legs.Decode(a.cache.params, openai.IDsEdit())
		}
		return a.cache.legs.Decode(a.cache.params)
	}
	if a.point != nil && a.point.Response != "" {
		return rq.Parsed.Edit(openai.ModelEdit(rq.Pool.Served), openai.ResponseIDEdit(a.point.Response))
	}
	if rq.Enc == nil || len(rq.Enc.IDs) == 0 {
		return plain(rq, from, followed)
	}
	h := e.tokens.Handoff(ctx, rq.EncodeRequest(), rq.Enc, a.Choice.Replica)
	if h.Form == tokenizer.HandoffNone {
		return plain(rq, from, followed)
	}
	edit, ok := from.PromptIDsEdit(h.IDs)
	if !ok {
		return plain(rq, from, followed)
	}
	a.handedOff = true
	if followed {
		return from.Edit(openai.ModelEdit(rq.Pool.Served), edit, openai.IDsEdit())
	}
	rq.Enc.LetGo() // another attempt sends the text
	return rq.Parsed.Edit(openai.ModelEdit(rq.Pool.Served), edit)
}

// plain is the client's body; a stream that is followed, of the request from, asks for the ids.
func plain(rq *intake.Request, from *openai.Request, followed bool) []byte {
	switch {
	case !followed:
		return rq.Body
	case from.Model == "":
		return from.Edit(openai.IDsEdit())
	}
	return from.Edit(openai.ModelEdit(rq.Pool.Served), openai.IDsEdit())
}

// Readers are the replicas that can be asked for a text of the request now, without the replica of attempt a in its life; a may be nil.
func (e *sender) Readers(rq *intake.Request, a *Attempt) []*replica.Replica {
	var list []*replica.Replica
	for _, r := range e.Registry.Snapshot().Replicas {
		if _, serves := r.Serves(rq.Pool.Served); !serves || r.State != replica.StateReady && r.State != replica.StateDraining {
			continue
		}
		if a == nil || r.ID != a.Choice.Replica.ID || r.Life != a.Choice.Replica.Life {
			list = append(list, r)
		}
	}
	return list
}

// MediaType is the type of an answer without its parameters, empty when it cannot be read.
func MediaType(h http.Header) string {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}
