package router

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// tokenize gets the prompt's token ids. Only the client's own fault is an error: a tokenizer that
// is down, slow or wrong, or a body without a prompt, leaves the request without ids, for a reason. So does a
// refusal that the route which generates may not share, or may word otherwise: the engine decides.
func (in *intake) tokenize(ctx context.Context, rq *request) error {
	if !rq.call.Route.Generates() {
		return nil
	}
	began := time.Now()
	tctx, cancel := context.WithTimeout(ctx, rq.set.TokenizeTimeout)
	defer cancel()
	ask := rq.encodeRequest()
	ask.Keep, ask.Namespace = rq.keepsIDs(), rq.namespace()
	ask.Span = rq.story.plan()
	ask.SizeOnly = !rq.wantsIDs() && rq.chat == nil && !rq.policies.ReadsCache(rq.pool.Model, &rq.call.Options)
	enc, err := in.tokens.Encode(tctx, ask)
	rq.tokenizing = time.Since(began)
	if fault, ok := errors.AsType[*tokenizer.ClientFault](err); ok && ctx.Err() == nil {
		rq.refused = fault
		if !rq.surfaces(fault) {
			err = nil
		}
	}
	rq.story.tokens(ask.Span, began, rq.tokenizing, enc, err)
	switch {
	case err == nil:
		rq.enc = enc
		if given := &rq.parsed.Prompt; len(enc.IDs) == 0 && !enc.Partial && (given.IDs != nil || given.Batch != nil) {
			given.IDs, given.Batch = nil, nil // as dispensable as those that were found; work behind a partial answer reads the prompt
		}
		return nil
	case ctx.Err() != nil:
		return apierror.From(cause(ctx, err))
	case rq.refused != nil:
		return rq.refusal()
	}
	return apierror.From(err)
}

// surfaces reports whether a tokenizer route's refusal is the answer to the client: where nothing but the ids
// is asked for; where no engine will be asked and one would refuse; and where one would in these very words.
func (rq *request) surfaces(f *tokenizer.ClientFault) bool {
	switch {
	case rq.onlyIDs:
		return true
	case rq.question != nil:
		return f.Firm
	}
	return f.Firm && f.Rendered
}

// refusal is the tokenizer route's answer as the client's.
func (t *tokenized) refusal() *apierror.Error {
	return apierror.Upstream(t.refused.Status, t.refused.ContentType, t.refused.Body)
}

// wantsIDs reports whether the caller asks for ids or overlaps, whether the policy looks at them or not.
func (rq *request) wantsIDs() bool {
	return rq.onlyIDs || rq.question != nil && rq.question.Booking == DryRun
}

// keepsIDs is the length up to which the prompt's ids are read after they were found.
func (rq *request) keepsIDs() int {
	switch {
	case rq.question != nil && rq.question.ReturnIDs:
		return math.MaxInt
	case rq.mayFollow():
		return resume.MaxTokens
	}
	return 0
}

// namespace is that of the blocks that the request's prompt becomes.
func (rq *request) namespace() blockhash.Namespace {
	return blockhash.Namespace{Adapter: rq.adapter, Salt: rq.parsed.Salt}
}

// encodeRequest is the question to the tokenizer.
func (rq *request) encodeRequest() tokenizer.Request {
	return tokenizer.Request{Prompt: &rq.parsed.Prompt, Pool: rq.pool.Served, Tenant: rq.call.Tenant, Replicas: rq.pool.Replicas, NeedFull: rq.onlyIDs}
}

// observe lets the parity guard compare what was predicted with what the engine counted.
func (at *attempts) observe(ctx context.Context, rq *request, a *attempt, res *chooser.Result) {
	if rq.enc == nil || res.PromptTokens < 0 {
		return
	}
	at.tokens.Observe(ctx, tokenizer.Observation{
		Pool: rq.pool.Served, Encoding: rq.enc, PromptTokens: res.PromptTokens, CachedTokens: res.CachedTokens,
		PredictedOverlap: a.choice.Held(), HandedOff: a.handedOff,
	})
}
