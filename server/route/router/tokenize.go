package router

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// tokenize gets the prompt's token ids. Only the client's own fault is an error: a tokenizer that
// is down, slow or wrong, or a body without a prompt, leaves the request without ids, and says why. So does a
// refusal that the route which generates may not share, or may put into other words: the engine has the say.
func (r *Router) tokenize(ctx context.Context, j *job) error {
	if !j.call.Route.Generates() {
		return nil
	}
	began := time.Now()
	tctx, cancel := context.WithTimeout(ctx, j.set.TokenizeTimeout)
	defer cancel()
	ask := j.encodeRequest()
	ask.Span = j.plan()
	ask.SizeOnly = !j.wantIDs && !r.Chooser.ReadsCache(j.settings, j.pool.Model, &j.call.Options)
	enc, err := r.Tokens.Encode(tctx, ask)
	j.tokenizing = time.Since(began)
	if fault, ok := errors.AsType[*tokenizer.ClientFault](err); ok && ctx.Err() == nil {
		j.refused = fault
		if !j.surfaces(fault) {
			err = nil
		}
	}
	j.noteTokens(ask.Span, began, enc, err)
	switch {
	case err == nil:
		j.enc = enc
		return nil
	case ctx.Err() != nil:
		return apierror.From(cause(ctx, err))
	case j.refused != nil:
		return j.refusal()
	}
	return apierror.From(err)
}

// surfaces reports whether a tokenizer route's refusal is the answer to the client: where nothing but the ids
// is asked for; where no engine will be asked and one would refuse; and where one would in these very words.
func (j *job) surfaces(f *tokenizer.ClientFault) bool {
	switch {
	case j.needFull:
		return true
	case j.choosing:
		return f.Firm
	}
	return f.Firm && f.Rendered
}

// refusal is the tokenizer route's answer as the client's.
func (j *job) refusal() *apierror.Error {
	return apierror.Upstream(j.refused.Status, j.refused.ContentType, j.refused.Body)
}

// encodeRequest is the question to the tokenizer.
func (j *job) encodeRequest() tokenizer.Request {
	return tokenizer.Request{Prompt: &j.req.Prompt, Pool: j.pool.Served, Replicas: j.pool.Replicas, NeedFull: j.needFull}
}

// outgoing is the body for the chosen replica: the client's, or the one that hands the ids over.
func (r *Router) outgoing(ctx context.Context, j *job) []byte {
	j.handedOff = false
	followed := j.following()
	if j.enc == nil || len(j.enc.IDs) == 0 {
		return j.plain(followed)
	}
	h := r.Tokens.Handoff(ctx, j.encodeRequest(), j.enc, j.choice.Replica)
	if h.Form == tokenizer.HandoffNone {
		return j.plain(followed)
	}
	edit, ok := j.req.PromptIDsEdit(h.IDs)
	if !ok {
		return j.plain(followed)
	}
	j.handedOff = true
	if followed {
		return j.req.Edit(openai.ModelEdit(j.pool.Served), edit, openai.IDsEdit())
	}
	return j.req.Edit(openai.ModelEdit(j.pool.Served), edit)
}

// plain is the client's body; a stream that is followed asks for the ids.
func (j *job) plain(followed bool) []byte {
	switch {
	case !followed:
		return j.body
	case j.req.Model == "":
		return j.req.Edit(openai.IDsEdit())
	}
	return j.req.Edit(openai.ModelEdit(j.pool.Served), openai.IDsEdit())
}

// whole has a choice that was made with the beginning of a prompt told of the rest, when that is known in time.
func (r *Router) whole(j *job, c *chooser.Choice) {
	if j.enc == nil || !j.enc.Partial {
		return
	}
	enc, pool, ns := j.enc, j.pool.Served, blockhash.Namespace{Adapter: j.adapter, Salt: j.req.Salt}
	enc.OnWhole(func(full *tokenizer.Encoding) {
		if !full.Exact {
			return
		}
		held, ok := c.Whole(full.Hashes(int(c.Decision.Pick().BlockSize), ns), full.Tokens)
		if ok && enc.Answer.Known > 0 && enc.Answer.Slot == c.Slot {
			r.Tokens.Repeated(pool, enc, held)
		}
	})
}

// answered notes which rank completed the answer, so that the conversation's next turn can count on it.
func (r *Router) answered(j *job, to *chooser.Result) {
	if j.seam == nil && j.req.N <= 1 && to.End == decision.EndCompleted {
		r.Tokens.Answered(j.pool.Served, j.enc, j.choice.Slot, to.OutputTokens)
	}
}

// observe lets the parity guard compare what was predicted with what the engine counted.
func (r *Router) observe(ctx context.Context, j *job, res *chooser.Result) {
	if j.enc == nil || res.PromptTokens < 0 {
		return
	}
	r.Tokens.Observe(ctx, tokenizer.Observation{
		Pool: j.pool.Served, Encoding: j.enc, PromptTokens: res.PromptTokens, CachedTokens: res.CachedTokens,
		PredictedOverlap: j.choice.Held(), HandedOff: j.handedOff,
	})
}
